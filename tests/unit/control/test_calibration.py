"""Maps recover what made the data, and reliability tells the honest from the boastful."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from eti_rank.control.calibration import Binning, fit_isotonic, fit_platt, fit_temperature, reliability
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=15)
seeds = st.integers(0, 2**32 - 1)
ROWS = 20_000


@laws
@given(st.floats(0.3, 5.0), st.integers(2, 5), seeds)
def test_temperature_recovers_its_own(temperature: float, labels: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    honest = random.normal(0, 1.5, (ROWS, labels))
    right = (special.softmax(honest, axis=1).cumsum(axis=1) < random.random((ROWS, 1))).sum(axis=1)
    assert fit_temperature(honest * temperature, right) == pytest.approx(temperature, rel=0.06)


@laws
@given(st.floats(0.2, 4.0), st.floats(-2.0, 2.0), st.floats(-100, 100), seeds)
def test_platt_recovers_its_own(slope: float, intercept: float, offset: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    score = random.normal(0, 1.5, ROWS)
    truth = special.expit(slope * score + intercept)
    fitted = fit_platt(score + offset, random.random(ROWS) < truth)
    assert fitted.slope == pytest.approx(slope, rel=0.12)
    np.testing.assert_allclose(fitted.probability(score + offset), truth, atol=0.03)


def test_platt_stays_finite_where_the_classes_are_apart() -> None:
    fitted = fit_platt([-2.0, -1.0, 1.0, 2.0], [0, 0, 1, 1])
    np.testing.assert_allclose(fitted.probability([-2.0, 2.0]), [0.25, 0.75], atol=0.1)


@laws
@given(seeds)
def test_isotonic_recovers_a_curve_that_no_line_fits(seed: int) -> None:
    random = np.random.default_rng(seed)
    score = random.uniform(-1, 1, ROWS)
    truth = np.where(score < 0, 0.1, 0.3 + 0.6 * score**2)
    fitted = fit_isotonic(score, random.random(ROWS) < truth)
    assert (np.diff(fitted.probability(np.linspace(-3, 3, 500))) >= 0).all()
    assert np.abs(fitted.probability(score) - truth).mean() < 0.025
    assert reliability(truth, random.random(ROWS) < truth, bins=10).expected_calibration_error < 0.03


@laws
@given(seeds, st.integers(1, 30), st.sampled_from(list(Binning)))
def test_reliability_counts_everything_once(seed: int, bins: int, binning: Binning) -> None:
    random = np.random.default_rng(seed)
    promised = random.random(500).round(1)
    label = random.random(500) < 0.4
    table = reliability(promised, label, bins=bins, binning=binning)
    assert table.count.sum() == 500
    assert table.count.size <= bins
    assert table.count @ table.mean_probability == pytest.approx(promised.sum())
    assert table.count @ table.frequency == pytest.approx(label.sum())
    # one bin can hide what many show, never the other way round
    assert table.expected_calibration_error >= abs(promised.mean() - label.mean()) - 1e-12


@laws
@given(seeds)
def test_the_error_is_small_for_honest_and_known_for_boastful_probabilities(seed: int) -> None:
    random = np.random.default_rng(seed)
    honest = random.random(ROWS)
    label = random.random(ROWS) < honest
    assert reliability(honest, label, bins=15).expected_calibration_error < 0.02
    sure = (honest > 0.5).astype(float)
    assert reliability(sure, label, bins=15).expected_calibration_error == pytest.approx(0.25, abs=0.02)
    mended = fit_platt(special.logit(honest), label).probability(special.logit(honest))
    assert reliability(mended, label, bins=15).expected_calibration_error < 0.03


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: fit_platt([0.0, 1.0], [1, 1]), id="one class"),
        pytest.param(lambda: fit_platt([1.0, 1.0], [0, 1]), id="one score"),
        pytest.param(lambda: fit_platt([3.0, 2.0, 1.0], [0, 0, 1]), id="wrong sign"),
        pytest.param(lambda: fit_isotonic([3.0, 2.0, 1.0], [0, 0, 1]), id="wrong sign, isotonic"),
        pytest.param(lambda: fit_platt([0.0, 1.0], [0, 2]), id="a grade is no label"),
        pytest.param(lambda: fit_platt([np.nan, 1.0], [0, 1]), id="NaN"),
        pytest.param(lambda: fit_temperature([[2.0, 1.0]] * 3, [0, 0, 0]), id="always right"),
        pytest.param(lambda: fit_temperature([[0.0, 1.0]], [2]), id="label outside"),
        pytest.param(lambda: fit_temperature([[0.0]], [0]), id="one logit"),
        pytest.param(lambda: reliability([1.1], [1], bins=2), id="probability above 1"),
        pytest.param(lambda: reliability([0.5], [1], bins=0), id="no bin"),
        pytest.param(lambda: reliability([], [], bins=2), id="no row"),
    ],
)
def test_refuses(call) -> None:
    with pytest.raises(DomainError):
        call()
