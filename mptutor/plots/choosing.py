"""Pictures of lesson 12: what was asked and what ran, what it takes, and where the answers lead."""

from __future__ import annotations

from matplotlib.axes import Axes

from mptutor.choice import Choice, Question
from mptutor.experiments.framework_recipes import FrameworkRecipesResult, WayRun
from mptutor.palette import colour
from mptutor.plots.picture import Picture, style

_RECIPES = ("naive FP16", "pure BF16", "AMP FP16 without scaler", "AMP FP16", "AMP BF16", "FP32")


def plot_what_ran(result: FrameworkRecipesResult) -> Picture:
    """Draw a row for every way: a ring at what was asked for, a dot at what ran."""
    runs = [run for run in result.runs if run.seen]
    fallen = [run for run in runs if run.fell_back]
    title = (
        f"{len(fallen)} of {len(runs)} ran something else than they were asked for"
        if fallen
        else "Every switch ran what it was asked for"
    )
    picture = Picture(title, _describe_runs(runs), height=1.1 + 0.25 * len(runs))
    axes = picture.axes_for("recipe", "")
    named = {name for run in runs for name in (run.asked, run.ran)}
    columns = [*(r for r in _RECIPES if r in named), *sorted(named - set(_RECIPES))]
    for row, run in enumerate(reversed(runs)):
        asked, ran = columns.index(run.asked), columns.index(run.ran)
        hue = colour("bad" if run.fell_back else "good")
        axes.plot(asked, row, "o", markersize=10, markerfacecolor="none", color=colour("ink"))
        axes.plot(ran, row, "o", markersize=5, color=hue)
        if run.fell_back:
            axes.annotate(
                "", (ran, row), (asked, row), arrowprops={"arrowstyle": "->", "color": hue}
            )
            said = "warned" if run.warnings else "silent"
            axes.text((asked + ran) / 2, row + 0.12, said, color=hue, fontsize=8, ha="center")
    axes.set_yticks(range(len(runs)), [run.name for run in reversed(runs)])
    axes.set_xticks(range(len(columns)), columns)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.plot(
        [], [], "o", markersize=10, markerfacecolor="none", color=colour("ink"), label="asked"
    )
    axes.plot([], [], "o", markersize=5, color=colour("good"), label="ran")
    axes.plot([], [], "o", markersize=5, color=colour("bad"), label="ran instead")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture


def _describe_runs(runs: list[WayRun]) -> str:
    return "What was asked for and what ran. " + "; ".join(
        f"{run.name}: asked {run.asked}, ran {run.ran}" for run in runs
    )


def plot_framework_costs(result: FrameworkRecipesResult) -> Picture:
    """Draw two bars for every way: lines to edit in a plain loop, and overhead of a step."""
    runs = [run for run in result.runs if run.seen]
    picture = Picture(
        "What it takes: lines once, and time in every step",
        "Bars of edited lines and of milliseconds a step beyond the raw loop with the same bits. "
        + "; ".join(
            f"{run.name}: {run.edits} line{'' if run.edits == 1 else 's'}"
            + (f", {run.overhead_ms:.2f} ms" if run.overhead_ms is not None else "")
            for run in runs
        ),
        height=1.1 + 0.22 * len(runs),
    )
    left, right = picture.subplots(1, 2, sharey=True)
    rows = range(len(runs) - 1, -1, -1)
    style(left, "lines to edit in a plain loop", "")
    style(right, "ms a step beyond the raw loop", "")
    left.barh(rows, [run.edits for run in runs], color=colour("blue"), height=0.65)
    overheads = [run.overhead_ms if run.overhead_ms is not None else 0.0 for run in runs]
    right.barh(rows, overheads, color=colour("orange"), height=0.65)
    for row, run in zip(rows, runs, strict=True):
        left.text(run.edits, row, f" {run.edits}", va="center", fontsize=8)
        if run.overhead_ms is None:
            right.text(0, row, " not compared", va="center", fontsize=8, color=colour("muted"))
    left.set_yticks(rows, [run.name for run in runs])
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
    return picture


def plot_choice(choice: Choice) -> Picture:
    """Draw the chart: questions from top to bottom, recipes beside them, the path in colour."""
    picture = Picture(
        f"{choice.machine}: try {choice.recipe}, and measure",
        f"A decision chart for {choice.machine}. "
        + " ".join(f"{q.text} {_in_words(q)}" for q in choice.questions)
        + f" The path leads to {choice.recipe}.",
        height=0.6 + 1.0 * (len(choice.questions) + 0.6),
    )
    axes = picture.add_subplot()
    axes.set_axis_off()
    bottom = -len(choice.questions)
    axes.set_xlim(0, 10)
    axes.set_ylim(bottom - 0.5, 0.5)
    for i, question in enumerate(choice.questions):
        _draw_question(axes, -i, question)
    by_default = choice.recipe == choice.otherwise
    _box(axes, 3.3, bottom, choice.otherwise, taken=by_default, is_recipe=True)
    return picture


def _draw_question(axes: Axes, y: float, question: Question) -> None:
    reached = question.answer is not None
    leaves = reached and question.answer == question.leaves_on
    text = f"{question.text}\n{_shorten(question.because)}" if reached else question.text
    _box(axes, 3.3, y, text, taken=reached, is_recipe=False)
    _box(axes, 8.8, y, question.recipe, taken=leaves, is_recipe=True)
    out, on = ("yes", "no") if question.leaves_on else ("no", "yes")
    _arrow(axes, (6.75, y), (7.9, y), out, taken=leaves)
    _arrow(axes, (3.3, y - 0.32), (3.3, y - 0.7), on, taken=reached and not leaves)


def _box(axes: Axes, x: float, y: float, text: str, *, taken: bool, is_recipe: bool) -> None:
    edge = colour("good" if taken and is_recipe else "blue" if taken else "line")
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=9,
        fontweight="bold" if taken and is_recipe else "normal",
        color=colour("ink" if taken else "muted"),
        bbox={
            "boxstyle": "round,pad=0.5" if is_recipe else "square,pad=0.5",
            "facecolor": colour("surface"),
            "edgecolor": edge,
            "linewidth": 2.2 if taken else 1.0,
        },
    )


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], word: str, *, taken: bool
) -> None:
    hue = colour("blue" if taken else "line")
    line = {"arrowstyle": "->", "color": hue, "linewidth": 2.2 if taken else 1.0}
    axes.annotate("", end, start, arrowprops=line)
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    sideways = start[1] == end[1]
    axes.annotate(
        word,
        middle,
        (0, 5) if sideways else (6, 0),
        textcoords="offset points",
        ha="center" if sideways else "left",
        va="bottom" if sideways else "center",
        fontsize=8.5,
        fontweight="bold" if taken else "normal",
        color=colour("ink" if taken else "muted"),
    )


def _shorten(text: str, limit: int = 66) -> str:
    return text if len(text) <= limit else text[: limit - 1].rsplit(" ", 1)[0] + " …"


def _in_words(question: Question) -> str:
    if question.answer is None:
        return "Not reached."
    return f"{'Yes' if question.answer else 'No'}: {question.because}."
