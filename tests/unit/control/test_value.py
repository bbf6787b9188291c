"""Expected gains: exact against sampling, and in the order that a reader would expect by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from eti_rank.control.posterior import LevelNoise, Posterior, from_prior, mean_shift_sd, update
from eti_rank.control.value import (
    Label,
    Utility,
    binary_entropy,
    discount_steps,
    expected_gain,
    knowledge_gradient,
    label_probability,
)
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=60)
LABEL = Label(threshold=0.0, blur=0.6)
ENTROPY_FIT_NATS = 0.004
"""Twice the stated distance of the approximation: it stands on both sides of the difference."""


def dcg(values: np.ndarray, k: int) -> np.ndarray:
    """[S], of [S, N] values in their best order."""
    best = -np.sort(-values, axis=1)[:, :k]
    return best @ (1 / np.log2(np.arange(2, best.shape[1] + 2)))


@laws
@given(st.integers(2, 25), st.integers(1, 30), st.floats(0.01, 3.0), st.integers(0, 2**32 - 1))
def test_knowledge_gradient_equals_sampling(n: int, k: int, shift: float, seed: int) -> None:
    random, samples = np.random.default_rng(seed), 10_000
    mean, document = random.normal(0, 1, n), int(random.integers(n))
    moved = np.tile(mean, (samples, 1))
    moved[:, document] += shift * random.normal(size=samples)
    # the mean of the move is known to be 0: DCG of the old order, a linear control, takes its noise away
    place = int((-mean).argsort().tolist().index(document))
    weight = 1 / np.log2(place + 2) if place < k else 0.0
    gain = dcg(moved, k) - dcg(mean[None], k)[0] - weight * (moved[:, document] - mean[document])
    closed = knowledge_gradient(mean, np.full((n, 1), shift), k=k)[document, 0]
    assert abs(gain.mean() - closed) <= 5 * gain.std() / np.sqrt(samples) + 1e-12


@laws
@given(st.integers(1, 200))
def test_discount_steps_sum_to_the_first_discount(k: int) -> None:
    weights = discount_steps(k)
    assert weights.shape == (k,)
    assert weights.sum() == pytest.approx(1.0, rel=1e-12)
    assert (weights > 0).all()


@laws
@given(st.floats(-2, 2), st.floats(0.1, 1.5), st.floats(0.1, 1.5), st.floats(0.1, 2), st.integers(0, 2**31))
def test_entropy_gain_equals_sampling(
    mean: float, prior_sd: float, sigma: float, blur: float, seed: int
) -> None:
    label, noise = Label(threshold=0.3, blur=blur), LevelNoise(np.array([sigma]), 0.2)
    belief = from_prior([mean], prior_sd**2, levels=1)
    closed = expected_gain(belief, noise, Utility.ENTROPY, k=1, label=label)[0, 0]
    now = binary_entropy(label_probability(belief, label))[0]
    shift = mean_shift_sd(belief, noise)[0, 0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    left = np.sqrt(prior_sd**2 - shift**2 + blur**2)
    after = binary_entropy(special.ndtr((mean + shift * nodes - 0.3) / left)) @ weights / weights.sum()
    assert closed == pytest.approx(now - after, abs=ENTROPY_FIT_NATS)


def gains(belief: Posterior, utility: Utility, noise: LevelNoise, k: int = 2) -> np.ndarray:
    return expected_gain(belief, noise, utility, k=k, label=LABEL)


@pytest.mark.parametrize("utility", list(Utility))
class TestEveryUtility:
    noise = LevelNoise(np.array([1.0, 0.5, 0.25]), 0.1)

    @given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**32 - 1))
    @laws
    def test_gains_are_never_negative_and_finite(self, utility: Utility, n: int, k: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        belief = from_prior(random.normal(0, 3, n), random.uniform(1e-6, 4, n), levels=3)
        seen = random.random((n, 3)) < 0.4
        document, level = np.nonzero(seen)
        belief = update(
            belief, self.noise, document=document, level=level, score=random.normal(size=seen.sum())
        )
        value = gains(belief, utility, self.noise, k)
        assert value.shape == (n, 3)
        assert np.isfinite(value).all()
        assert (value >= 0).all()
        assert (value[seen] == 0).all()

    def test_a_better_level_gains_more(self, utility: Utility) -> None:
        belief = from_prior([1.0, 0.4, 0.1, -0.2], 1.0, levels=3)
        assert (np.diff(gains(belief, utility, self.noise), axis=1) > 0).all()

    def test_what_is_known_gains_less_than_what_is_not(self, utility: Utility) -> None:
        belief = from_prior([0.2, 0.2, 0.2], [0.01, 0.1, 1.0], levels=3)
        assert (np.diff(gains(belief, utility, self.noise), axis=0) > 0).all()


def test_membership_cares_for_the_cut_and_the_label_for_its_threshold() -> None:
    # the cut lies between places 2 and 3; the label is undecided at 0
    belief = from_prior([4.0, 2.1, 1.9, 0.0, -3.0], 0.25, levels=1)
    noise = LevelNoise(np.array([0.5]), 0.0)
    assert set(gains(belief, Utility.TOP_K, noise)[:, 0].argsort()[-2:]) == {1, 2}
    assert gains(belief, Utility.ENTROPY, noise)[:, 0].argmax() == 3
    assert gains(belief, Utility.NDCG, noise)[3, 0] < 0.01 * gains(belief, Utility.NDCG, noise)[2, 0]


def test_order_inside_the_list_is_worth_something_to_ndcg_alone() -> None:
    belief = from_prior([4.05, 4.0, 0.0, -0.1], 0.09, levels=1)
    noise = LevelNoise(np.array([0.1]), 0.0)
    assert gains(belief, Utility.NDCG, noise)[0, 0] > 0.01
    assert gains(belief, Utility.TOP_K, noise)[0, 0] < 1e-4
    # a close call at the first place counts more than the same at the second
    close = from_prior([4.0, 3.9, 1.0, 0.9, -4.0], 0.09, levels=1)
    value = gains(close, Utility.NDCG, noise, k=4)[:, 0]
    assert value[:2].min() > value[2:].max()


def test_no_place_to_win_no_gain() -> None:
    belief = from_prior([1.0, 0.0], 1.0, levels=1)
    noise = LevelNoise(np.array([1.0]), 0.0)
    assert (gains(belief, Utility.TOP_K, noise, k=2) == 0).all()
    assert gains(from_prior([1.0], 1.0, levels=1), Utility.NDCG, noise, k=3)[0, 0] == 0


@pytest.mark.parametrize(
    ("mean", "shift", "k"),
    [
        pytest.param([0.0, 1.0], [[1.0], [1.0]], 0, id="no place"),
        pytest.param([0.0, 1.0], [[1.0]], 1, id="shapes differ"),
        pytest.param([0.0], [[-1.0]], 1, id="negative shift"),
        pytest.param([np.nan], [[1.0]], 1, id="NaN"),
    ],
)
def test_refuses(mean: list[float], shift: list[list[float]], k: int) -> None:
    with pytest.raises(DomainError):
        knowledge_gradient(mean, shift, k=k)


def test_refuses_probabilities_and_labels_outside_their_domain() -> None:
    with pytest.raises(DomainError):
        binary_entropy(1.1)
    with pytest.raises(DomainError):
        Label(threshold=0.0, blur=0.0)
