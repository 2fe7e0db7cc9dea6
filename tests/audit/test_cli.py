"""`mptutor audit script.py` runs the script as `python script.py` does, and then reports."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from mptutor.audit import Trace, cli

LOOP = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    def train(batches):
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu")
        for x, y in batches:
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # before unscale_
            scaler.step(optimizer)
            scaler.update()
        return model

    def batches(n):
        for _ in range(n):
            yield torch.randn(4, 8), torch.zeros(4, dtype=torch.long)
"""


@pytest.fixture
def script(tmp_path):
    """Write a script; the loop above can be imported by it as `loop`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "loop.py").write_text(textwrap.dedent(LOOP))

    def write(text):
        path = folder / "train.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def run(*command, cwd=None, environment=None):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env=env,
    )


AUDIT = ("-m", "mptutor.audit")


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit(7)",
        "sys.exit('no data')",
        "raise ValueError('of the script')",
    ],
)
def test_as_without_it(script, tmp_path, ending):
    """The same output, arguments, module, folders and ending, from another working folder."""
    path = script(
        f"""
        import os, sys
        import loop   # beside the script
        print(sys.argv, __name__, __file__, os.getcwd(), sys.path[0], __package__, __spec__)
        print(sys.modules["__main__"].__dict__ is globals())

        def last():
            {ending}

        last()
        """
    )
    arguments = ("--lr", "0.1", "--", "data dir")
    plain = run(path, *arguments, cwd=tmp_path)
    audited = run(*AUDIT, path, *arguments, cwd=tmp_path)
    assert audited.stdout == plain.stdout
    assert audited.returncode == plain.returncode
    assert audited.stderr.startswith(plain.stderr)
    assert "audit: 0 steps" in audited.stderr[len(plain.stderr) :]


def test_report_and_json(script, tmp_path):
    path = script(
        """
        from loop import batches, train
        train(batches(6))
        print("done")
        """
    )
    stored = tmp_path / "report.json"
    result = run(*AUDIT, path, "--json", stored)
    assert result.returncode == 0
    assert result.stdout == "done\n"
    assert "clip_before_unscale" in result.stderr
    assert "loop.py:15" in result.stderr
    assert "lesson  10" in result.stderr
    report = json.loads(stored.read_text())
    first = report["findings"][0]
    assert (first["rule"], first["level"]) == ("clip_before_unscale", "wrong")
    assert first["site"]["line"] == 15
    assert report["steps"] == 6
    assert Trace.from_json(json.dumps(report["trace"])).steps == 6


def test_steps_reports_early_and_lets_the_script_go_on(script):
    path = script(
        """
        import gc, torch
        from loop import batches, train
        update = torch.amp.GradScaler.update.__wrapped__

        def watched():
            for i, batch in enumerate(batches(8)):
                if i == 4:
                    print("the same", torch.amp.GradScaler.update is update)
                yield batch

        train(watched())
        print("done")
        """
    )
    result = run(*AUDIT, "--steps", "3", path)
    assert result.stdout == "the same True\ndone\n"
    assert "audit: 3 steps" in result.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(script, method):
    path = script(
        """
        import sys, torch
        from torch.utils.data import DataLoader, Dataset
        from loop import train

        class Data(Dataset):
            def __len__(self): return 16
            def __getitem__(self, i): return torch.randn(8) * 1.0, i % 2

        if __name__ == "__main__":
            loader = DataLoader(Data(), 4, num_workers=2, multiprocessing_context=sys.argv[1])
            torch.save(train(loader), "model.pt")
            print("done")
        """
    )
    result = run(*AUDIT, path, method, cwd=path.parent)
    assert result.stdout == "done\n", result.stderr
    assert result.stderr.count("audit: 4 steps") == 1


def test_two_processes(script, tmp_path):
    """The first reports; each writes its own JSON."""
    path = script(
        """
        import torch.distributed as dist
        from loop import batches, train
        dist.init_process_group("gloo")
        train(batches(4))
        dist.destroy_process_group()
        """
    )
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    stored = tmp_path / "report.json"
    result = run(*launch, *AUDIT, "--json", stored, path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("audit: 4 steps") == 1
    assert "one of 2 processes" in result.stderr
    assert stored.exists() and stored.with_name("report.rank1.json").exists()


def test_a_module(script):
    path = script("import sys\nprint(__name__, sys.argv[1:])")
    result = run(*AUDIT, "-m", "train", "-x", cwd=path.parent)
    assert result.stdout == "__main__ ['-x']\n"
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py", ("train.py", [], None, None)),
        ("train.py a --lr 1", ("train.py", ["a", "--lr", "1"], None, None)),
        ("--steps 5 train.py --steps 9 b", ("train.py", ["--steps", "9", "b"], 5, None)),
        ("train.py a --json f --steps 9", ("train.py", ["a"], 9, "f")),
        ("train.py -- --steps 9", ("train.py", ["--steps", "9"], None, None)),
        ("--json=f --steps=2 train.py", ("train.py", [], 2, "f")),
    ],
)
def test_whose_option_is_it(line, expected):
    request = cli.parse(line.split())
    found = request.target, request.arguments, request.steps, request.json_file
    assert found == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "which script"),
        ("--steps", "--steps needs a value"),
        ("--steps none train.py", "takes a number of steps"),
        ("--fast train.py", "no such option: --fast"),
        ("missing.py", "missing.py"),
    ],
)
def test_bad_command_lines(line, complaint, capsys):
    assert cli.main(line.split()) == 2
    assert complaint in capsys.readouterr().err
