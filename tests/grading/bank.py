"""The misconception bank as notebook cells."""

import inspect

from mptutor.checks import find_task
from tests.answers import Answer, answers


def answers_of(lesson: str) -> dict[str, list[Answer]]:
    """Return the answers to the tasks of a lesson, a list a task."""
    by_task: dict[str, list[Answer]] = {}
    for answer in answers():
        if answer.task.startswith(lesson):
            by_task.setdefault(answer.task, []).append(answer)
    return by_task


def as_cell(answer: Answer) -> str:
    """Return an answer as the source of a cell that defines what the task asks for."""
    written = answer.written
    module = inspect.getmodule(written)
    helpers = [
        inspect.getsource(value)
        for name, value in vars(module).items()
        if name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    imports = [
        line
        for line in inspect.getsource(module).splitlines()
        if line.startswith(("import ", "from ")) and " tests." not in line
    ]
    lines = inspect.getsource(written).splitlines()
    body = [line for line in lines if not line.startswith("@")]
    function = find_task(answer.task).function
    return "\n".join([*imports, *helpers, *body, f"{function} = {written.__name__}"])
