"""The judge: plain answers in, a verdict out.

It compares the answers with the reference's, case by case, and asks each misunderstanding of the
task what it would have answered. The one that explains the wrong answers best is named, and one
case shown that it explains: the input, what came out, what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mptutor.checks.plain import Unknown, pack, unpack
from mptutor.checks.task import Case, Misunderstanding, Task, same


@dataclass(frozen=True)
class Raised:
    """An exception instead of an answer."""

    type: str
    message: str
    line: str

    def __repr__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True)
class Verdict:
    """What the judge found.

    ``outcome`` is ``"right"``, ``"wrong"``, ``"raised"`` (the code raised an exception) or
    ``"unwritten"``. Unless all is right, ``case``, ``expected`` and ``got`` show a case that is
    not, as text; ``misunderstanding`` is the name of the belief the answers show, or
    ``None``; ``hint`` speaks to it and ``reread`` names the heading in the lesson.
    """

    task: str
    outcome: str
    cases_right: int
    cases_total: int
    case: str = ""
    expected: str = ""
    got: str = ""
    misunderstanding: str | None = None
    hint: str = ""
    reread: str = ""

    @property
    def right(self) -> bool:
        """Whether the task is solved."""
        return self.outcome == "right"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data for JSON."""
        return asdict(self)


def judge(task: Task, cases: Sequence[Case], answers: Sequence[dict[str, Any]]) -> Verdict:
    """Judge what a probe took down, one answer a case.

    Raises
    ------
    ValueError
        If an answer is missing, or is nothing that `mptutor.checks.probes.try_out` writes.
    """
    if len(answers) != len(cases):
        raise ValueError(f"answers has {len(answers)} entries for {len(cases)} cases")
    expected = [_plain(task.reference(*case.inputs)) for case in cases]
    got = [_read(answer) for answer in answers]
    right = [_agrees(task, e, g) for e, g in zip(expected, got, strict=True)]
    if all(right):
        return Verdict(task.id, "right", len(cases), len(cases))

    belief, shown = _explain(task, cases, expected, got)
    where, expected_part, got_part = _narrow(expected[shown], got[shown])
    return Verdict(
        task.id,
        _outcome(got[right.index(False)]),
        sum(right),
        len(cases),
        case=cases[shown].label + where,
        expected=show(expected_part),
        got=show(got_part),
        misunderstanding=belief.name if belief else None,
        hint=belief.hint if belief else _describe_mismatch(expected[shown], got[shown]),
        reread=belief.reread if belief else "",
    )


def show(value: Any) -> str:
    """Show a value in one short line."""
    if isinstance(value, torch.Tensor):
        text = f"{value.tolist()} ({value.dtype})" if value.numel() <= 8 else repr(value)
    else:
        text = _repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:197] + "..."


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return f"a {type(value).__name__} too long to print"


def _plain(value: Any) -> Any:
    """Send a value through the same channel as the learner's, so that the two compare."""
    return unpack(pack(value))


def _read(answer: dict[str, Any]) -> Any:
    if type(answer) is dict and answer.keys() == {"value"}:
        return unpack(answer["value"])
    error = answer.get("error") if type(answer) is dict else None
    if type(error) is dict and error.keys() == {"type", "message", "line"}:
        return Raised(**{key: str(text) for key, text in error.items()})
    raise ValueError(f"not an answer: {str(answer)[:80]}")


def _agrees(task: Task, expected: Any, got: Any) -> bool:
    return not isinstance(got, (Raised, Unknown)) and task.agree(expected, got)


def _outcome(got: Any) -> str:
    if not isinstance(got, Raised):
        return "wrong"
    return "unwritten" if got.type == "NotImplementedError" else "raised"


def _explain(
    task: Task, cases: Sequence[Case], expected: Sequence[Any], got: Sequence[Any]
) -> tuple[Misunderstanding | None, int]:
    """Return the misunderstanding whose answers are most like the learner's, and a case to show.

    A belief that shares less than half of the wrong answers is no explanation. The case is the
    first wrong one, of those that the belief explains if there is one.
    """
    wrong = [not _agrees(task, e, g) for e, g in zip(expected, got, strict=True)]
    best, best_likeness, shown = None, 0, wrong.index(True)
    for belief in task.misunderstandings:
        believed = [_what_it_answers(belief, case) for case in cases]
        alike = [_alike(task, b, g) for b, g in zip(believed, got, strict=True)]
        explained = [a and w for a, w in zip(alike, wrong, strict=True)]
        if 2 * sum(explained) >= sum(wrong) and sum(alike) > best_likeness:
            best, best_likeness, shown = belief, sum(alike), explained.index(True)
    return best, shown


def _narrow(expected: Any, got: Any) -> tuple[str, Any, Any]:
    """Of two long lists, return which entry is the first to differ, and that entry of each."""
    if type(expected) is list and type(got) is list and 3 < len(expected) == len(got):
        for i, (e, g) in enumerate(zip(expected, got, strict=True)):
            if not same(e, g):
                return f"; entry {i} of the list", e, g
    return "", expected, got


def _alike(task: Task, believed: Any, got: Any) -> bool:
    if isinstance(believed, Raised) and isinstance(got, Raised):
        return believed.type == got.type
    return not isinstance(believed, Raised) and _agrees(task, believed, got)


def _what_it_answers(belief: Misunderstanding, case: Case) -> Any:
    try:
        return _plain(belief.believes(*case.inputs))
    except Exception as error:
        return Raised(type(error).__name__, str(error), "")


def _describe_mismatch(expected: Any, got: Any) -> str:
    """Say what is different about an answer that no known misunderstanding explains."""
    if isinstance(got, Raised):
        return f"It was raised at `{got.line}`." if got.line else ""
    if got is None:
        return "Your function returned None. Is there a `return` on every path?"
    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
        for what in ("dtype", "shape"):
            if getattr(got, what) != getattr(expected, what):
                return (
                    f"The {what} is {getattr(got, what)}; asked for is {getattr(expected, what)}."
                )
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() != got.keys():
        return f"The keys are {sorted(got)}; asked for are {sorted(expected)}."
    if isinstance(expected, dict) and isinstance(got, dict):
        wrong = [key for key in expected if not same(expected[key], got[key])]
        return f"Wrong: {', '.join(wrong)}. The other entries are right."
    if type(expected) is not type(got) and not isinstance(expected, (int, float)):
        return f"It is a {type(got).__name__}; asked for is a {type(expected).__name__}."
    return ""
