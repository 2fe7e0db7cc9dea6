"""The misconception bank, graded: each wrong answer is named as in a check and loses its points."""

import pytest

from tests.grading.bank import answers_of, as_cell
from tests.grading.exercise01 import exercise

BANK = answers_of("01")
LARGEST = max(map(len, BANK.values()))


@pytest.mark.parametrize("number", range(LARGEST))
def test_is_graded_as_it_is_checked(number, grade_one):
    chosen = {task: answers[number % len(answers)] for task, answers in sorted(BANK.items())}
    cells = {f"s{task[-1]}": as_cell(answer) for task, answer in chosen.items()}
    result = grade_one(exercise(**cells))
    for graded in result.tasks:
        answer = chosen[graded.task]
        assert (graded.outcome == "right") == (answer.misunderstanding is None), answer.name
        assert graded.misunderstanding == answer.misunderstanding, answer.name
        assert graded.points == (graded.max_points if answer.misunderstanding is None else 0)
