"""The belief about documents: exact conjugacy, the shared-bias floor, and repeats that are no evidence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eti_rank.control.posterior import (
    LevelNoise,
    from_prior,
    mean_shift_sd,
    reach_sd,
    update,
    variance_after,
    winsorised,
)
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=60)
sds = st.floats(0.05, 5.0)


@st.composite
def noises(draw: st.DrawFn) -> LevelNoise:
    level_sd = draw(st.lists(sds, min_size=1, max_size=4))
    return LevelNoise(np.array(level_sd), draw(st.one_of(st.just(0.0), sds)))


def joint_gaussian(
    prior_mean: float, prior_variance: float, noise: LevelNoise, levels: list[int], scores: list[float]
) -> tuple[float, float]:
    """The independent oracle: condition the joint normal of (theta, y_1..y_m) by its covariance matrix."""
    m = len(levels)
    covariance = prior_variance + noise.shared_sd**2 + np.diag(np.asarray(noise.level_sd)[levels] ** 2)
    gain = np.linalg.solve(covariance, np.full(m, prior_variance))
    return prior_mean + gain @ (np.array(scores) - prior_mean), prior_variance - gain.sum() * prior_variance


@laws
@given(noises(), sds, st.floats(-3, 3), st.data())
def test_equals_conditioning_the_joint_normal(
    noise: LevelNoise, prior_sd: float, prior_mean: float, data: st.DataObject
) -> None:
    count = noise.level_sd.size
    levels = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True))
    scores = data.draw(st.lists(st.floats(-5, 5), min_size=len(levels), max_size=len(levels)))
    belief = from_prior([prior_mean], prior_sd**2, levels=count)
    for level, score in zip(levels, scores, strict=True):
        predicted = variance_after(belief, noise)[0, level]
        belief = update(belief, noise, document=0, level=level, score=score)
        assert belief.variance[0] == pytest.approx(predicted, rel=1e-12)
    mean, variance = joint_gaussian(prior_mean, prior_sd**2, noise, levels, scores)
    assert belief.mean[0] == pytest.approx(mean, rel=1e-6, abs=1e-6)
    assert belief.variance[0] == pytest.approx(variance, rel=1e-6)


@laws
@given(noises(), sds, st.integers(0, 2**32 - 1))
def test_order_and_batching_of_results_do_not_matter(noise: LevelNoise, prior_sd: float, seed: int) -> None:
    count, documents, random = noise.level_sd.size, 4, np.random.default_rng(seed)
    steps = [(d, level, random.normal(0, 2)) for d in range(documents) for level in range(count)]
    one_by_one = from_prior(np.zeros(documents), prior_sd**2, levels=count)
    for document, level, score in [steps[place] for place in random.permutation(len(steps))]:
        one_by_one = update(one_by_one, noise, document=document, level=level, score=score)
    document, level, score = map(list, zip(*steps, strict=True))
    start = from_prior(np.zeros(documents), prior_sd**2, levels=count)
    at_once = update(start, noise, document=document, level=level, score=score)
    np.testing.assert_allclose(one_by_one.mean, at_once.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(one_by_one.variance, at_once.variance, rtol=1e-12)
    assert not start.seen.any()


@laws
@given(noises(), sds, st.floats(-3, 3))
def test_asking_a_level_again_is_not_evidence(noise: LevelNoise, prior_sd: float, score: float) -> None:
    start = from_prior([0.0, 0.0], prior_sd**2, levels=noise.level_sd.size)
    once = update(start, noise, document=0, level=0, score=score)
    again = update(once, noise, document=[0, 0], level=[0, 0], score=[score + 1, score])
    assert again.variance[0] == once.variance[0]
    assert again.mean[0] == once.mean[0]
    assert mean_shift_sd(once, noise)[0, 0] == 0
    # the other document is untouched
    assert (again.mean[1], again.variance[1]) == (start.mean[1], start.variance[1])


@laws
@given(sds, sds, st.integers(1, 4))
def test_variance_never_falls_below_the_shared_bias_floor(
    shared: float, prior_sd: float, levels: int
) -> None:
    noise = LevelNoise(np.full(levels, 1e-6), shared)
    belief = from_prior([0.0], prior_sd**2, levels=levels)
    belief = update(belief, noise, document=[0] * levels, level=range(levels), score=[1.0] * levels)
    floor = 1 / (1 / prior_sd**2 + 1 / shared**2)
    assert floor * (1 - 1e-9) <= belief.variance[0] <= floor * (1 + 1e-6)


@laws
@given(noises(), sds)
def test_reach_is_what_asking_everything_would_move(noise: LevelNoise, prior_sd: float) -> None:
    count = noise.level_sd.size
    start = from_prior([0.0], prior_sd**2, levels=count)
    final = update(start, noise, document=[0] * count, level=range(count), score=[0.0] * count)
    moved = np.sqrt(start.variance - final.variance)
    np.testing.assert_allclose(reach_sd(start, noise), moved, rtol=1e-6, atol=1e-9)
    assert reach_sd(final, noise)[0] == 0
    shift = mean_shift_sd(start, noise)[0]
    assert (shift <= reach_sd(start, noise)[0] + 1e-9).all()
    if noise.shared_sd == 0:
        sigma = noise.level_sd
        np.testing.assert_allclose(shift, prior_sd**2 / np.sqrt(prior_sd**2 + sigma**2), rtol=1e-6)


@settings(laws, max_examples=5)
@given(st.integers(0, 2**32 - 1))
def test_beliefs_are_honest(seed: int) -> None:
    """Standardised errors of the posterior have mean 0 and variance 1 where the model holds."""
    random, n = np.random.default_rng(seed), 20_000
    noise = LevelNoise(np.array([1.0, 0.5, 0.3]), 0.4)
    theta = random.normal(0.3, 1.2, n)
    scores = theta[:, None] + random.normal(0, 0.4, (n, 1)) + random.normal(0, 1, (n, 3)) * noise.level_sd
    asked = random.random((n, 3)) < 0.6
    document, level = np.nonzero(asked)
    belief = from_prior(np.full(n, 0.3), 1.44, levels=3)
    belief = update(belief, noise, document=document, level=level, score=scores[asked])
    z = (theta - belief.mean) / belief.sd
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / n)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda b, n: from_prior([0.0], 0.0, levels=1), id="no variance"),
        pytest.param(lambda b, n: from_prior([np.nan], 1.0, levels=1), id="NaN mean"),
        pytest.param(lambda b, n: from_prior([[0.0]], 1.0, levels=1), id="matrix of means"),
        pytest.param(lambda b, n: from_prior([0.0], 1.0, levels=0), id="no level"),
        pytest.param(lambda b, n: update(b, n, document=2, level=0, score=0.0), id="document outside"),
        pytest.param(lambda b, n: update(b, n, document=-1, level=0, score=0.0), id="negative document"),
        pytest.param(lambda b, n: update(b, n, document=0.5, level=0, score=0.0), id="half a document"),
        pytest.param(lambda b, n: update(b, n, document=0, level=2, score=0.0), id="level outside"),
        pytest.param(lambda b, n: update(b, n, document=0, level=0, score=np.nan), id="NaN score"),
        pytest.param(lambda b, n: update(b, n, document=[0, 1], level=0, score=0.0), id="shapes differ"),
        pytest.param(lambda b, n: variance_after(b, LevelNoise(np.ones(3), 0.0)), id="other levels"),
        pytest.param(lambda b, n: LevelNoise(np.zeros(2), 0.0), id="noise of zero"),
        pytest.param(lambda b, n: LevelNoise(np.ones(2), -1.0), id="negative bias"),
        pytest.param(lambda b, n: LevelNoise(np.ones(0), 0.0), id="noise of no level"),
    ],
)
def test_refuses(call) -> None:
    with pytest.raises(DomainError):
        call(from_prior([0.0, 1.0], 1.0, levels=2), LevelNoise(np.ones(2), 0.0))


@laws
@given(noises(), sds, st.floats(0.5, 4.0), st.floats(-50, 50))
def test_the_guard_limits_what_one_answer_can_move(
    noise: LevelNoise, prior_sd: float, limit: float, score: float
) -> None:
    belief = from_prior([0.5], prior_sd**2, levels=noise.level_sd.size)
    drawn_in = winsorised(belief, noise, document=0, level=0, score=score, sds=limit)
    moved = update(belief, noise, document=0, level=0, score=drawn_in).mean[0] - 0.5
    assert abs(moved) <= limit * mean_shift_sd(belief, noise)[0, 0] * (1 + 1e-6)
    # what the belief expected passes as it is, and the sign of the surprise stays
    assert drawn_in[0] == score or abs(drawn_in[0]) < abs(score) + 0.5
    expected = winsorised(belief, noise, document=0, level=0, score=0.5 + 0.1 * limit * prior_sd, sds=limit)
    assert expected[0] == 0.5 + 0.1 * limit * prior_sd
    with pytest.raises(DomainError):
        winsorised(belief, noise, document=0, level=0, score=score, sds=0.0)
