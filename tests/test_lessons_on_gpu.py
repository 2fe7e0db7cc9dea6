"""Lessons 07 to 10 and 13 with a GPU: every cell runs, its asserts hold, and CUDA is used.

The lessons choose the device themselves, so the cells are the ones a learner without a GPU runs.
Each lesson has a process of its own: lessons switch simulations on and count memory.
"""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
LESSONS = sorted(
    p for n in ("07", "08", "09", "10", "13") for p in (ROOT / "lessons").glob(f"{n}_*.ipynb")
)
LIMIT_S = 280

#: Runs a notebook's code cells, then prints how many bytes of GPU memory they have used at most.
RUN = """
import sys, nbformat, torch
namespace = {"__name__": "__main__"}
for number, cell in enumerate(nbformat.read(sys.argv[1], as_version=4).cells):
    if cell.cell_type == "code":
        exec(compile(cell.source, f"cell {number}", "exec"), namespace)
print("peak_bytes", torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0)
"""


def run_cells(notebook: Path, folder: Path) -> int:
    """Run a notebook's code cells in ``folder`` and return the peak of GPU memory in bytes."""
    run = subprocess.run(
        [sys.executable, "-c", RUN, notebook],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return int(run.stdout.split()[-1])


@pytest.mark.gpu
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_on_a_gpu(lesson, tmp_path):
    assert run_cells(lesson, tmp_path) > 0, "no cell has used the GPU"


@pytest.mark.parametrize(("cell", "fails"), [("x = 1", False), ("assert x == 2", True)])
def test_a_claim_that_does_not_hold_is_noticed(cell, fails, tmp_path):
    cells = [nbformat.v4.new_code_cell("x = 1"), nbformat.v4.new_code_cell(cell)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "lesson.ipynb")
    if fails:
        with pytest.raises(AssertionError, match="cell 1"):
            run_cells(tmp_path / "lesson.ipynb", tmp_path)
    else:
        run_cells(tmp_path / "lesson.ipynb", tmp_path)
