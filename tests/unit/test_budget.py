import pytest

from eti_rank.ranking.budget import Allowance
from eti_rank.types import Budget


def submitted(allowance: Allowance, lengths: list[int], uncached: list[int]) -> int:
    """Steps submitted one after the other."""
    for count, (length, cost) in enumerate(zip(lengths, uncached, strict=True)):
        if not allowance.fits(length):
            return count
        allowance.reserve(length)
        allowance.settle(length, cost)
    return len(lengths)


def test_without_limits_everything_fits() -> None:
    assert submitted(Allowance(Budget(), [10**9] * 3, 0), [10**9] * 3, [10**9] * 3) == 3


def test_open_steps_count_at_their_worst_case() -> None:
    allowance = Allowance(Budget(max_tokens=100), [60, 60], 0)
    allowance.reserve(60)
    assert not allowance.fits(60)
    assert not allowance.used_up
    allowance.settle(60, uncached_tokens=40)
    assert allowance.fits(60)
    assert not allowance.fits(61)


@pytest.mark.parametrize(("max_tokens", "steps"), [(9, 0), (10, 1), (29, 2), (30, 3)])
def test_max_tokens_is_never_exceeded(max_tokens: int, steps: int) -> None:
    allowance = Allowance(Budget(max_tokens=max_tokens), [10] * 3, 0)
    assert submitted(allowance, [10] * 3, [10] * 3) == steps


@pytest.mark.parametrize(
    ("fraction", "steps"),
    [(1.0, 4), (0.99, 3), (0.75, 1), (100 / 130, 2), (0.5, 0)],
    ids=["all", "just-below-all", "one", "exactly-two", "first-does-not-fit"],
)
def test_a_fraction_is_measured_in_planned_tokens(fraction: float, steps: int) -> None:
    lengths = [90, 60, 60, 70]  # with 50 shared: 90 + 10 + 10 + 20 = 130 planned
    allowance = Allowance(Budget(fraction=fraction), lengths, shared_prefix_tokens=50)
    assert submitted(allowance, lengths, lengths) == steps


@pytest.mark.parametrize("lengths", [[], [7]], ids=["none", "one"])
def test_the_whole_fraction_admits_short_plans(lengths: list[int]) -> None:
    allowance = Allowance(Budget(fraction=1.0), lengths, 0)
    assert submitted(allowance, lengths, lengths) == len(lengths)
    assert allowance.used_up
