"""The dispatcher: verbs, help, versions, unknown verbs, and what it doesn't import."""

import subprocess
import sys
from importlib import import_module, metadata

import pytest

from mptutor import cli


def test_help_lists_every_verb(capsys):
    for argv in ([], ["--help"], ["-h"]):
        assert cli.main(argv) == 0
        shown = capsys.readouterr().out
        assert all(f"  {verb}" in shown for verb in cli.VERBS)


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mptutor {metadata.version('mptutor')}\n"


def test_unknown_verb_is_exit_code_2_and_shows_the_known_ones(capsys):
    assert cli.main(["docter"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "there is no verb 'docter'" in shown.err
    assert "doctor" in shown.err


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_listed_verb_exists_and_has_help(verb, capsys):
    module, purpose = cli.VERBS[verb]
    assert purpose
    assert callable(import_module(module).main)
    try:
        code = cli.main([verb, "--help"])
    except SystemExit as left:  # argparse leaves by itself
        code = left.code
    assert code == 0
    assert f"mptutor {verb}" in capsys.readouterr().out


def test_arguments_and_exit_code_pass_through(monkeypatch):
    from mptutor import doctor

    seen = []
    monkeypatch.setattr(doctor, "main", lambda argv: seen.append(argv) or 7)
    assert cli.main(["doctor", "--json", "x"]) == 7
    assert seen == [["--json", "x"]]


def test_help_imports_neither_torch_nor_jupyter():
    code = (
        "import sys; from mptutor.cli import main; main([]); "
        "sys.exit(bool({'torch', 'jupyterlab', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_runs_as_a_module_and_as_a_script():
    done = subprocess.run(
        [sys.executable, "-m", "mptutor", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage: mptutor VERB" in done.stderr
