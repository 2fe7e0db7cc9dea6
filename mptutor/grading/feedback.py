"""What a student gets back: a page on what was right, what was misunderstood, where to reread.

It shows the first wrong case of those in the student's own notebook. Of the hidden cases it says
how many were wrong and, where one is known, the misunderstanding; the `Result` holds no more that
could get in here but ``for_instructor``, which this module leaves alone.
"""

from __future__ import annotations

from mptutor.grading.page import page
from mptutor.grading.result import Result, TaskResult
from mptutor.grading.text import for_html, prose


def feedback_page(result: Result) -> str:
    """Return the page for the student of a result."""
    title = f"Exercise {result.lesson}: {result.points} of {result.max_points} points"
    parts = [f"<h1>{for_html(title)}</h1>", f"<p>{for_html(result.student)}</p>"]
    if result.reason:
        parts.append(f"<p><strong>{prose(result.reason)}</strong></p>")
    else:
        parts += [_task(task) for task in result.tasks]
    parts += [
        _list("What happened in your cells", result.events),
        _list("About the file", result.notes),
    ]
    return page(title, "\n".join(part for part in parts if part))


def _task(task: TaskResult) -> str:
    earned = task.points == task.max_points
    mark, style = ("✓", "right") if earned else ("✗", "lost")
    lines = [
        "<section>",
        f'<h2><span class="{style}">{mark}</span> {task.task} '
        f"<code>{for_html(task.function)}</code>, {task.points} of {task.max_points} points</h2>",
        f"<p>{prose(task.reason)}</p>",
    ]
    if task.case:
        shown = (
            f"input     {task.case}\n"  # the columns of the notebook's own check
            f"yours     {task.got}\n"
            f"expected  {task.expected}"
        )
        lines.append(f"<pre>{for_html(shown)}</pre>")
    if task.hint:
        lines.append(f"<p>{prose(task.hint)}</p>")
    if task.reread:
        lesson = for_html(task.task.partition(".")[0])
        lines.append(f"<p>Reread lesson {lesson}, “{for_html(task.reread)}”.</p>")
    return "\n".join([*lines, "</section>"])


def _list(title: str, items: tuple[str, ...]) -> str:
    if not items:
        return ""
    entries = "\n".join(f"<li>{prose(item)}</li>" for item in items)
    return f"<section>\n<h2>{for_html(title)}</h2>\n<ul>\n{entries}\n</ul>\n</section>"
