import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eti_rank.control import entropy as law
from eti_rank.control.entropy_bounds import entropy_bounds, entropy_estimate, truncated_entropy
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=150)
EXACT_NATS = 1e-11
"""Rounding of sums of up to 1,000 terms of at most 1 nat."""


def top(log_probs: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    return np.sort(log_probs, axis=-1)[..., ::-1][..., :k]


@st.composite
def distributions(draw: st.DrawFn) -> NDArray[np.float64]:
    """Log-probabilities [3, V], from nearly uniform to nearly certain, with ties and impossible tokens."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    vocabulary = draw(st.integers(2, 1000))
    logits = rng.normal(0, draw(st.sampled_from([0, 0.1, 1, 4, 20])), (3, vocabulary))
    if draw(st.booleans()):
        logits = np.round(logits)
    logits[:, rng.random(vocabulary) < draw(st.sampled_from([0, 0.5]))] = -np.inf
    logits[:, 0] = 0.0
    return law.log_softmax(logits)


@laws
@given(distributions(), st.floats(0, 1))
def test_the_interval_holds_the_entropy_and_the_estimate(
    log_probs: NDArray[np.float64], share: float
) -> None:
    vocabulary = log_probs.shape[-1]
    k = 1 + int(share * (vocabulary - 1))
    head, exact = top(log_probs, k), law.entropy(log_probs)
    bounds = entropy_bounds(head, vocabulary=vocabulary)
    estimate = entropy_estimate(head, vocabulary=vocabulary)
    assert (bounds.lower_nats <= exact + EXACT_NATS).all()
    assert (exact <= bounds.upper_nats + EXACT_NATS).all()
    assert (bounds.lower_nats <= estimate + EXACT_NATS).all()
    assert (estimate <= bounds.upper_nats + EXACT_NATS).all()
    assert (truncated_entropy(head) <= bounds.lower_nats + EXACT_NATS).all()


@laws
@given(distributions(), st.floats(0, 1))
def test_both_ends_are_attained(log_probs: NDArray[np.float64], share: float) -> None:
    vocabulary = log_probs.shape[-1]
    k = 1 + int(share * (vocabulary - 1))
    head = top(log_probs, k)[0]
    bounds = entropy_bounds(head, vocabulary=vocabulary)
    rest, p_k, tail = max(0.0, 1 - np.exp(head).sum()), math.exp(head[-1]), vocabulary - k

    equal = np.full(tail, rest / max(tail, 1))
    packed = np.zeros(tail)
    for j in range(tail):
        packed[j] = min(p_k, max(0.0, rest - j * p_k))
    for probabilities, end in ((equal, bounds.upper_nats), (packed, bounds.lower_nats)):
        assert (probabilities <= p_k + 1e-12).all()
        with np.errstate(divide="ignore"):
            whole = np.minimum(np.concatenate([head, np.log(probabilities)]), 0.0)
        assert law.entropy(whole) == pytest.approx(float(end), abs=1e-9)


@laws
@given(distributions())
def test_all_tokens_known_is_the_full_entropy(log_probs: NDArray[np.float64]) -> None:
    vocabulary = log_probs.shape[-1]
    exact = law.entropy(log_probs)
    bounds = entropy_bounds(log_probs, vocabulary=vocabulary)
    np.testing.assert_array_equal(bounds.lower_nats, exact)
    np.testing.assert_array_equal(bounds.upper_nats, exact)
    np.testing.assert_array_equal(entropy_estimate(log_probs, vocabulary=vocabulary), exact)


@laws
@given(distributions())
def test_knowing_more_tokens_never_widens_the_interval(log_probs: NDArray[np.float64]) -> None:
    vocabulary = log_probs.shape[-1]
    intervals = [
        entropy_bounds(top(log_probs, k), vocabulary=vocabulary) for k in range(1, min(vocabulary, 40) + 1)
    ]
    assert (np.diff([i.lower_nats for i in intervals], axis=0) >= -EXACT_NATS).all()
    assert (np.diff([i.upper_nats for i in intervals], axis=0) <= EXACT_NATS).all()


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.3, 3.0])
@pytest.mark.parametrize("vocabulary", [300, 151_936])
def test_the_estimate_recovers_a_power_law(exponent: float, vocabulary: int) -> None:
    log_probs = law.log_softmax(-exponent * np.log(np.arange(1, vocabulary + 1)))
    estimate = entropy_estimate(log_probs[:20], vocabulary=vocabulary)
    assert estimate == pytest.approx(float(law.entropy(log_probs)), abs=1e-3)


def test_one_row_at_a_time_is_the_same() -> None:
    log_probs = law.log_softmax(np.random.default_rng(0).normal(0, 3, (2, 3, 400)))
    together = entropy_estimate(top(log_probs, 20), vocabulary=400)
    alone = [[entropy_estimate(top(row, 20), vocabulary=400) for row in block] for block in log_probs]
    np.testing.assert_allclose(together, alone, rtol=1e-10)


def test_float32_log_probabilities_move_an_end_by_less_than_1e_5_nats() -> None:
    log_probs = law.log_softmax(np.random.default_rng(1).normal(0, 3, (50, 50_000)))
    head = top(log_probs, 20)
    exact, rounded = (entropy_bounds(h, vocabulary=50_000) for h in (head, head.astype(np.float32)))
    np.testing.assert_allclose(rounded.lower_nats, exact.lower_nats, atol=1e-5)
    np.testing.assert_allclose(rounded.upper_nats, exact.upper_nats, atol=1e-5)


@pytest.mark.parametrize(
    ("top_log_probs", "vocabulary", "complaint"),
    [
        ([-0.1, math.nan], 5, "must not be NaN"),
        ([-0.1, 0.5], 5, "must be <= 0"),
        ([-1.0, -2.0, -3.0], 2, "k = 3 .* vocabulary of 2"),
        (np.log([0.7, 0.3011]), 5, r"must total <= 1 .*bfloat16.*1\.0011"),
        (np.log([0.6, 0.1]), 4, r"must be the 2 largest: 2 smaller ones .* total, got 0\.7"),
        (np.log([0.6, 0.3]), 2, "must be the 2 largest: 0 smaller ones"),
        ([-0.5, -math.inf], 9, "must be the 2 largest"),
    ],
)
def test_outside_the_domain(top_log_probs: list[float], vocabulary: int, complaint: str) -> None:
    for law_of_the_head in (entropy_bounds, entropy_estimate):
        with pytest.raises(DomainError, match=complaint):
            law_of_the_head(top_log_probs, vocabulary=vocabulary)
