"""``mptutor record``: run every experiment on this GPU and write one JSON file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from mptutor.records.machine import Machine, NoGpuError, look_at_gpu
from mptutor.records.record import MINUTES, make_record, write_atomically
from mptutor.records.registry import EXPERIMENTS

_DEVICE = torch.device("cuda")


def main(argv: list[str]) -> int:
    """Make a record; return 1 if an experiment failed, 2 if there is no GPU or nowhere to write."""
    arguments = _parser().parse_args(argv)
    try:
        machine = look_at_gpu()
    except NoGpuError as error:
        print(f"mptutor record: {error}", file=sys.stderr)
        return 2
    out = arguments.out or Path(_file_name(machine))
    if not out.parent.is_dir():
        print(f"mptutor record: --out: there is no folder {out.parent}", file=sys.stderr)
        return 2
    print(f"Recording on {machine.gpu}, at most about {arguments.minutes:g} minutes.")
    record = make_record(
        machine,
        _DEVICE,
        experiments=EXPERIMENTS,
        seconds=60 * arguments.minutes,
        say=_say_at_once,
    )
    write_atomically(record.to_json(), out)
    print(f"Wrote {out}.  Lessons show it once it is in mptutor/records/.")
    return 1 if record.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mptutor record",
        description="Run every experiment on this GPU at its full size and write the results.",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: named after the GPU")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"time to stay within, default {MINUTES}"
    )
    return parser


def _say_at_once(line: str) -> None:
    print(line, flush=True)


def _file_name(machine: Machine) -> str:
    words = "".join(c if c.isalnum() else " " for c in f"{machine.gpu} torch {machine.torch}")
    return f"{'-'.join(words.lower().split())}.json"
