"""Membership of the k best against sampling, and against the exact answers of hand-made cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from eti_rank.control.membership import cut_between, membership
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=40)
SAMPLES = 20_000
INTEGRAL_ERROR = 0.01
"""What the module states for its trapezoids."""


@st.composite
def beliefs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    random, n = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.integers(2, 40))
    sd = random.uniform(0.05, 1.5, n) * draw(st.sampled_from([0.1, 1.0, 3.0]))
    return random.normal(0, 1, n), sd, draw(st.integers(1, n - 1))


@laws
@given(beliefs(), st.integers(0, 2**32 - 1))
def test_agrees_with_sampling_and_sums_to_k(belief: tuple[np.ndarray, np.ndarray, int], seed: int) -> None:
    mean, sd, k = belief
    probability = membership(mean, sd, k=k)
    assert probability.sum() == pytest.approx(k, abs=1e-6)
    assert (probability >= 0).all()
    assert (probability <= 1).all()
    drawn = mean + sd * np.random.default_rng(seed).normal(size=(SAMPLES, mean.size))
    inside = drawn >= np.partition(drawn, -k, axis=1)[:, [-k]]
    standard_error = np.sqrt(inside.mean(axis=0) * (1 - inside.mean(axis=0)) / SAMPLES)
    assert (np.abs(inside.mean(axis=0) - probability) <= INTEGRAL_ERROR + 5 * standard_error).all()


@laws
@given(st.floats(-2, 2), st.floats(0.1, 2), st.floats(0.1, 2))
def test_two_documents_have_a_closed_form(gap: float, first: float, second: float) -> None:
    probability = membership([gap, 0.0], [first, second], k=1)
    assert probability[0] == pytest.approx(special.ndtr(gap / np.hypot(first, second)), abs=INTEGRAL_ERROR)


@laws
@given(beliefs())
def test_better_mean_at_equal_sd_is_more_likely_in(belief: tuple[np.ndarray, np.ndarray, int]) -> None:
    mean, _, k = belief
    probability = membership(mean, np.full(mean.size, 0.7), k=k)
    assert (np.diff(probability[np.argsort(mean)]) >= -2 * INTEGRAL_ERROR).all()


def test_certain_documents_need_no_integral() -> None:
    np.testing.assert_array_equal(membership([3.0, 2.0, 1.0, 0.0], np.zeros(4), k=2), [1, 1, 0, 0])
    np.testing.assert_array_equal(membership([3.0, 2.0], [1.0, 1.0], k=5), [1, 1])


def test_ties_share_their_places() -> None:
    np.testing.assert_allclose(
        membership([9.0, 1.0, 1.0, 1.0, 0.0], np.zeros(5), k=2), [1, *[1 / 3] * 3, 0], atol=0.01
    )


@laws
@given(beliefs())
def test_cut_has_k_documents_above_it_on_average(belief: tuple[np.ndarray, np.ndarray, int]) -> None:
    mean, sd, k = belief
    cut = cut_between(mean, sd, k=k)
    assert special.ndtr((mean - cut.place) / sd).sum() == pytest.approx(k, abs=1e-6)
    drawn = mean + sd * np.random.default_rng(1).normal(size=(4000, mean.size))
    border = np.sort(drawn, axis=1)[:, -k - 1 : mean.size - k + 1].mean(axis=1)
    assert cut.sd <= sd.max()
    inside = special.ndtr((mean - cut.place) / sd)
    # a delta method where the cut is contested: right in size, not in its third digit
    if (inside * (1 - inside)).sum() > 0.5:
        assert 0.5 * border.std() <= cut.sd <= 2 * border.std()


def test_everybody_is_above_the_cut_of_a_short_list() -> None:
    assert cut_between([1.0, 2.0], [1.0, 1.0], k=2) == (-np.inf, 0.0)


@pytest.mark.parametrize(
    ("mean", "sd", "k"),
    [
        pytest.param([], [], 1, id="no document"),
        pytest.param([1.0], [-1.0], 1, id="negative sd"),
        pytest.param([np.nan], [1.0], 1, id="NaN"),
        pytest.param([1.0], [1.0], 0, id="no place"),
        pytest.param([1.0, 2.0], [1.0], 1, id="shapes differ"),
    ],
)
def test_refuses(mean: list[float], sd: list[float], k: int) -> None:
    for law in (membership, cut_between):
        with pytest.raises(DomainError):
            law(mean, sd, k=k)
