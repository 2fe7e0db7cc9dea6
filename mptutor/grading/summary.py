"""What the class has not understood yet: one page for the instructor, with a plot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from mptutor.grading.page import page
from mptutor.grading.result import Result, TaskResult
from mptutor.grading.text import for_html, prose

_BAR_HEIGHT, _LABEL_WIDTH, _BAR_WIDTH = 24, 300, 320
_OUTCOMES = ("right", "wrong", "raised", "stopped", "unwritten", "missing")


def summary_page(results: Sequence[Result]) -> str:
    """Return the page about a class: by lesson the outcomes of each task, then what is behind."""
    by_lesson = defaultdict(list)
    for result in results:
        by_lesson[result.lesson].append(result)
    parts = [f"<h1>{len(results)} submissions</h1>"]
    parts += [_lesson(lesson, ones) for lesson, ones in sorted(by_lesson.items())]
    return page("The class", "\n".join(parts))


def misunderstandings(results: Sequence[Result]) -> list[tuple[str, str, int]]:
    """Return which task, which misunderstanding, how often; the most frequent first."""
    counts = Counter(
        (task.task, task.misunderstanding)
        for result in results
        for task in result.tasks
        if task.misunderstanding
    )
    return [(*what, n) for what, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _lesson(lesson: str, results: list[Result]) -> str:
    graded = [result for result in results if not result.reason]
    parts = [f"<section>\n<h2>Exercise {for_html(lesson)}</h2>", f"<p>{_in_short(graded)}</p>"]
    if graded:
        parts += [_outcome_table(graded), _plot(misunderstandings(graded))]
    parts += [_unusual("Could not be graded", [(r, r.reason) for r in results if r.reason])]
    parts += [_unusual("Ran into a limit, or worse", _incidents(graded)), "</section>"]
    return "\n".join(part for part in parts if part)


def _in_short(graded: list[Result]) -> str:
    if not graded:
        return "Nothing could be graded."
    mean = sum(result.points for result in graded) / len(graded)
    full = sum(result.points == result.max_points for result in graded)
    return (
        f"{len(graded)} graded, {mean:.1f} of {graded[0].max_points} points on average, "
        f"{full} with all of them."
    )


def _outcome_table(graded: list[Result]) -> str:
    by_task: dict[str, list[TaskResult]] = defaultdict(list)
    for result in graded:
        for task in result.tasks:
            by_task[task.task].append(task)
    head = "".join(f"<th>{outcome}</th>" for outcome in _OUTCOMES)
    rows = [f"<tr><th>task</th>{head}</tr>"]
    for number, tasks in sorted(by_task.items()):
        counts = Counter(task.outcome for task in tasks)
        cells = "".join(f"<td>{counts[outcome] or ''}</td>" for outcome in _OUTCOMES)
        name = f"{number} <code>{for_html(tasks[0].function)}</code>"
        rows.append(f"<tr><td>{name}</td>{cells}</tr>")
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _plot(counted: list[tuple[str, str, int]]) -> str:
    """Draw a bar for each misunderstanding, with its number beside it."""
    if not counted:
        return "<p>No misunderstanding of those that are known was found.</p>"
    most = counted[0][2]
    height = _BAR_HEIGHT * len(counted)
    width = _LABEL_WIDTH + _BAR_WIDTH + 40
    bars = []
    for row, (task, name, count) in enumerate(counted):
        top, length = row * _BAR_HEIGHT, _BAR_WIDTH * count / most
        bars.append(
            f'<text x="0" y="{top + 17}">{task} {for_html(name)}</text>'
            f'<rect x="{_LABEL_WIDTH}" y="{top + 4}" width="{length:.0f}" height="16"/>'
            f'<text x="{_LABEL_WIDTH + length + 8:.0f}" y="{top + 17}">{count}</text>'
        )
    return (
        "<h2>What was misunderstood, and how often</h2>\n"
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'aria-label="How often each misunderstanding was found">\n' + "\n".join(bars) + "\n</svg>"
    )


def _incidents(graded: list[Result]) -> list[tuple[Result, str]]:
    serious = [(r, e) for r in graded for e in r.events if " raised " not in e]
    stopped = [(r, t.reason) for r in graded for t in r.tasks if t.outcome == "stopped"]
    return serious + stopped


def _unusual(title: str, entries: list[tuple[Result, str]]) -> str:
    if not entries:
        return ""
    items = "\n".join(f"<li>{for_html(r.student)}: {prose(text)}</li>" for r, text in entries)
    return f"<h2>{title}</h2>\n<ul>\n{items}\n</ul>"
