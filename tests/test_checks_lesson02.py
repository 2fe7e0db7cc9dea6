"""The references of exercise 02 against torch, and wrong answers on cases nobody has seen."""

import pytest
import torch

from mptutor.checks import find_task
from mptutor.checks.judge import judge
from mptutor.checks.probes import try_out
from mptutor.experiments.accumulation import add_up_compensated, add_up_in_blocks
from tests.answers import answers

pytestmark = pytest.mark.lesson02

WRONG = [a for a in answers() if a.task.startswith("02.") and a.misunderstanding]


def test_rounding_is_torchs_where_torch_has_the_format():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20_000, generator=generator) * 4 - 2
    x = torch.cat([x, (x * 2**12).round() / 2**12])  # ties of FP16 among them
    x = x[x.abs() > 2**-14]
    reference = find_task("02.1").reference
    for dtype, bits in ((torch.float16, 11), (torch.bfloat16, 8)):
        rounded = torch.tensor([reference(value, bits) for value in x.tolist()])
        assert torch.equal(rounded, x.to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_stop_is_where_torchs_sum_stops(dtype):
    bits = {torch.float16: 10, torch.bfloat16: 7}[dtype]
    reference = find_task("02.2").reference
    for start in torch.arange(1, 2, 0.04):
        term = start.to(dtype)
        total = torch.zeros((), dtype=dtype)
        while (larger := total + term) != total:
            total = larger
        assert reference(term.item(), bits) == total.item()


def test_the_sums_are_those_of_the_lesson():
    x = torch.rand(1_000, generator=torch.Generator().manual_seed(0)).half()
    assert torch.equal(find_task("02.3").reference(x, 100), add_up_in_blocks(x))
    assert torch.equal(find_task("02.4").reference(x), add_up_compensated(x))


@pytest.mark.parametrize("answer", WRONG, ids=lambda a: a.name)
def test_a_wrong_answer_is_found_out_by_hidden_cases_too(answer):
    task = find_task(answer.task)
    cases = task.cases(3)
    verdict = judge(task, cases, [try_out(task.probe, answer.written, c.inputs) for c in cases])
    assert not verdict.right
    assert verdict.misunderstanding == answer.misunderstanding
