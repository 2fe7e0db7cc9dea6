# make lab   set up and open the course        make test   set up and run every test
# make build   source/ -> notebooks            make lint   format and lint
# make html  the lessons as pages that need no kernel, in site/

PYTHON ?= python3
BIN := .venv/bin
NBVAL := --nbval-lax --nbval-cell-timeout=120 --nbval-kernel-startup-timeout=120

.PHONY: lab test build lint html

lab: .venv/lab.stamp
	$(BIN)/mptutor lab $(ARGS)

test: export OMP_NUM_THREADS := 1
test: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/browser tests
	$(BIN)/python -m pytest tests/browser
	$(BIN)/python -m pytest -n 2 --dist loadfile $(NBVAL) lessons solutions

build: .venv/dev.stamp
	$(BIN)/python tools/build_course.py

lint: .venv/dev.stamp
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

html: .venv/dev.stamp
	$(BIN)/jupyter nbconvert --to html --execute --output-dir site lessons/*.ipynb \
		--ExecutePreprocessor.store_widget_state=False

# A stamp is newer than pyproject.toml once its packages are installed: a second call starts at once.
.venv/lab.stamp: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[course,frameworks]"
	touch $@

.venv/dev.stamp: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[course,frameworks,instructor,dev]"
	touch $@ .venv/lab.stamp
