"""Fits recover the noise that made the table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eti_rank.control.level_noise import ScoreTable, fit_against_labels, fit_against_top, fit_prior, rescaled
from eti_rank.control.posterior import LevelNoise, from_prior, update, with_noise
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=15)
seeds = st.integers(0, 2**32 - 1)
QUERIES, DOCUMENTS = 60, 100
SLOPE, INTERCEPT = np.array([0.4, 1.0, 2.5]), np.array([-3.0, 0.0, 7.0])
SIGMA = np.array([1.2, 0.7, 0.3])


def recorded(random: np.random.Generator, shared: float, keep: float = 1.0) -> tuple[ScoreTable, np.ndarray]:
    """A table with a known model, its rows shuffled and some lost; and each row's true relevance."""
    theta = random.normal(1, 1.5, (QUERIES, DOCUMENTS, 1))
    error = random.normal(0, shared, theta.shape) + SIGMA * random.normal(size=(QUERIES, DOCUMENTS, 3))
    score = INTERCEPT + SLOPE * (theta + error)
    query, document, level = (axis.ravel() for axis in np.indices(score.shape))
    rows = random.permutation(score.size)[: int(keep * score.size)]
    truth = np.broadcast_to(theta, score.shape).ravel()
    return ScoreTable(query[rows], document[rows], level[rows], score.ravel()[rows]), truth[rows]


@laws
@given(st.floats(0.2, 1.0), st.sampled_from([1.0, 0.6]), seeds)
def test_labels_recover_noise_bias_and_scale(shared: float, keep: float, seed: int) -> None:
    table, truth = recorded(np.random.default_rng(seed), shared, keep)
    fit = fit_against_labels(table, truth)
    # sampling error of a covariance from that many documents, five times over
    within = 5 * np.sqrt(2 / (keep**2 * QUERIES * DOCUMENTS)) * (SIGMA**2 + shared**2)
    assert (np.abs(fit.noise.level_sd**2 - SIGMA**2) < within).all()
    assert abs(fit.noise.shared_sd**2 - shared**2) < within.min()
    np.testing.assert_allclose([m.slope for m in fit.maps], SLOPE, rtol=0.1)
    np.testing.assert_allclose([m.intercept for m in fit.maps], INTERCEPT, atol=0.15)


@laws
@given(seeds)
def test_without_shared_bias_none_is_found(seed: int) -> None:
    table, truth = recorded(np.random.default_rng(seed), 0.0)
    fit = fit_against_labels(table, truth)
    assert fit.noise.shared_sd < 0.15
    np.testing.assert_allclose(fit.noise.level_sd, SIGMA, rtol=0.1)


@laws
@given(seeds)
def test_the_top_level_recovers_how_well_it_is_foreseen(seed: int) -> None:
    random = np.random.default_rng(seed)
    top = random.normal(0, 2, (QUERIES * DOCUMENTS, 1))
    score = np.hstack([0.5 * (top + random.normal(0, 0.8, top.shape)) - 1, top])
    document, level = (axis.ravel() for axis in np.indices(score.shape))
    fit = fit_against_top(ScoreTable(np.zeros_like(document), document, level, score.ravel()))
    assert fit.noise.level_sd[0] == pytest.approx(0.8, rel=0.05)
    assert 0 < fit.noise.level_sd[1] < 0.01
    assert fit.noise.shared_sd == 0
    assert (fit.maps[1].slope, fit.maps[1].intercept) == (pytest.approx(1), pytest.approx(0, abs=1e-9))


def test_a_fitted_posterior_is_honest() -> None:
    random = np.random.default_rng(11)
    train, truth = recorded(random, 0.5)
    fit, prior = fit_against_labels(train, truth), fit_prior(truth + random.normal(0, 2, truth.size), truth)
    fresh, theta = recorded(random, 0.5)
    first = fresh.level == 0
    order = np.lexsort((fresh.document[first], fresh.query[first]))
    theta0 = theta[first][order]
    belief = from_prior(prior.mean(theta0 + random.normal(0, 2, theta0.size)), prior.variance, levels=3)
    for level in (0, 2):
        rows = np.flatnonzero(fresh.level == level)
        relevance = fit.maps[level].relevance(fresh.score[rows])
        place = fresh.query[rows] * DOCUMENTS + fresh.document[rows]
        belief = update(belief, fit.noise, document=place, level=np.full(rows.size, level), score=relevance)
    z = (theta0 - belief.mean) / belief.sd
    assert abs(z.mean()) < 0.1
    assert z.std() == pytest.approx(1.0, abs=0.1)


def table(level: list[int], score: list[float], document: list[int] | None = None) -> ScoreTable:
    documents = np.arange(len(level)) if document is None else np.array(document)
    return ScoreTable(np.zeros(len(level), int), documents, np.array(level), np.array(score))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: fit_against_labels(table([0] * 4, [4, 3, 2, 1]), [1, 2, 3, 4]), id="wrong sign"),
        pytest.param(lambda: fit_against_labels(table([0, 0], [1, 2]), [1, 2]), id="too few rows"),
        pytest.param(lambda: fit_against_labels(table([0] * 3, [1, 1, 1]), [1, 2, 3]), id="constant score"),
        pytest.param(lambda: fit_against_labels(table([0, 0], [1, 2], [5, 5]), [1, 1]), id="a level twice"),
        pytest.param(
            lambda: fit_against_labels(table([0, 1, 0, 0], [1, 2, 3, 4], [0, 0, 1, 2]), [1, 2, 3, 4]),
            id="two labels for a pair",
        ),
        pytest.param(lambda: fit_against_labels(table([0] * 3, [1, 2, 3]), [1, 2]), id="shapes differ"),
        pytest.param(
            lambda: fit_against_top(table([0, 0, 0, 1], [1, 2, 3, 4])), id="nobody has the top level"
        ),
        pytest.param(lambda: table([0, -1], [1, 2]), id="negative level"),
        pytest.param(lambda: table([0], [np.nan]), id="NaN"),
        pytest.param(lambda: table([], []), id="no row"),
        pytest.param(lambda: fit_prior([1, 1, 1], [1, 2, 3]), id="constant first stage"),
    ],
)
def test_refuses(call) -> None:
    with pytest.raises(DomainError):
        call()


@laws
@given(st.floats(0.3, 3.0), st.floats(0.0, 0.6), seeds)
def test_a_request_finds_by_how_much_its_noise_is_off(factor: float, shared: float, seed: int) -> None:
    random, n = np.random.default_rng(seed), 400
    theta = random.normal(0, 1.0, n)
    truth = LevelNoise(SIGMA, shared)
    score = (theta + random.normal(0, shared, n))[:, None] + SIGMA * random.normal(size=(n, 3))
    seen = random.random((n, 3)) < 0.6
    document, level = np.nonzero(seen)
    believed = LevelNoise(SIGMA / factor, shared)
    belief = from_prior(np.zeros(n), 1.0, levels=3)
    belief = update(belief, believed, document=document, level=level, score=score[seen])
    found = rescaled(belief, believed)
    np.testing.assert_allclose(found.level_sd, truth.level_sd, rtol=0.2)
    weighed = with_noise(belief, found)
    at_once = update(
        from_prior(np.zeros(n), 1.0, levels=3), found, document=document, level=level, score=score[seen]
    )
    np.testing.assert_allclose(weighed.mean, at_once.mean, atol=1e-12)
    np.testing.assert_allclose(weighed.variance, at_once.variance, rtol=1e-12)


def test_few_results_rescale_little() -> None:
    noise = LevelNoise(SIGMA, 0.0)
    belief = from_prior([0.0, 1.0], 1.0, levels=3)
    np.testing.assert_allclose(rescaled(belief, noise).level_sd, SIGMA)
    np.testing.assert_array_equal(with_noise(belief, noise).mean, belief.mean)
    belief = update(belief, noise, document=0, level=0, score=0.1)
    np.testing.assert_allclose(rescaled(belief, noise).level_sd, SIGMA, rtol=0.3)
    with pytest.raises(DomainError):
        rescaled(belief, LevelNoise(np.ones(2), 0.0))
