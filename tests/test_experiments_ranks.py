"""Ranks without processes: what they compute, and what would hang real ones."""

import pytest
import torch

from mptutor.experiments.ranks import RanksError, on_ranks, with_ranks

pytestmark = pytest.mark.lesson13


def test_every_rank_gets_the_sum_and_the_largest():
    def both(x, ranks):
        return ranks.rank, ranks.size, ranks.sum(x).tolist(), ranks.max(x).tolist()

    inputs = [torch.tensor([1.0, -5.0]), torch.tensor([2.0, 3.0]), torch.tensor([4.0, -1.0])]
    assert on_ranks(both, inputs) == [(i, 3, [7.0, -3.0], [4.0, 3.0]) for i in range(3)]


def test_a_call_may_depend_on_the_answer_to_the_one_before():
    def center_and_sum_squares(x, ranks):
        mean = ranks.sum(x) / ranks.size
        return ranks.sum((x - mean) ** 2).item()

    assert on_ranks(center_and_sum_squares, torch.tensor([1.0, 2.0, 6.0])) == [14.0] * 3


def test_a_sum_is_added_rank_by_rank_in_the_dtype_of_its_terms():
    terms = [torch.tensor([2048.0]).half(), torch.tensor([1.0]).half(), torch.tensor([1.0]).half()]
    for order in (terms, terms[::-1]):
        total = on_ranks(lambda x, ranks: ranks.sum(x), order)[0]
        assert total.dtype == torch.float16
        assert torch.equal(total, order[0] + order[1] + order[2])
    overflow = on_ranks(lambda x, ranks: ranks.sum(x), [torch.tensor(40_000.0).half()] * 2)
    assert overflow[0].isinf() and overflow[1].isinf()


def test_a_nan_on_one_rank_is_the_largest_on_all():
    largest = on_ranks(lambda x, ranks: ranks.max(x), torch.tensor([1.0, torch.nan]))
    assert all(x.isnan() for x in largest)


def test_inputs_and_answers_are_each_ranks_own():
    def careless(x, ranks):
        x.mul_(2)
        total = ranks.sum(x)
        total.add_(1)
        return total.item()

    inputs = [torch.ones(1), torch.ones(1)]
    assert on_ranks(careless, inputs) == [5.0, 5.0]
    assert [x.item() for x in inputs] == [1.0, 1.0]


def test_it_knows_what_was_sent():
    def half_of_it(x, ranks):
        ranks.max(x.abs().max())
        return ranks.sum(x.half())

    (_, ranks), _ = with_ranks(half_of_it, [torch.ones(3, 2), torch.ones(3, 2)])
    assert ranks.sent == [(torch.float32, 1), (torch.float16, 6)]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, ranks: None if x < 0 else ranks.sum(x), "rank 1 has returned, and rank 0 waits"),
        (lambda x, ranks: ranks.max(x) if x < 0 else ranks.sum(x), r"rank 0 calls sum\(\)"),
        (lambda x, ranks: ranks.sum(x.half() if x < 0 else x), "rank 1 sum.. with float16"),
    ],
)
def test_ranks_that_do_not_do_the_same_are_an_error(function, said):
    with pytest.raises(RanksError, match=said):
        on_ranks(function, torch.tensor([1.0, -1.0]))


def test_no_except_stops_a_rank_that_waits():
    def catches_all(x, ranks):
        try:
            return ranks.sum(x).item()
        except Exception:
            return None

    assert on_ranks(catches_all, torch.tensor([1.0, 2.0])) == [3.0, 3.0]


def test_what_a_rank_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        on_ranks(lambda x, ranks: ranks.sum(x) / 0 if x > 1 else 1 // 0, torch.tensor([1.0, 2.0]))
