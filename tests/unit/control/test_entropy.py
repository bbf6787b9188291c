import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import optimize, stats

from eti_rank.control import entropy as law
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=100)
logit = st.one_of(st.floats(-60, 60), st.just(-math.inf))
rows = hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=3, max_side=7), elements=logit).filter(
    lambda z: bool(np.isfinite(z.max(axis=-1)).all())
)
temperatures = st.floats(0.05, 5)


def random_logits(seed: int, *shape: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, 3, shape)


@laws
@given(rows)
def test_entropy_equals_scipys_and_lies_between_zero_and_ln_v(logits: NDArray[np.float64]) -> None:
    log_probs = law.log_softmax(logits)
    ours = law.entropy(log_probs)
    np.testing.assert_allclose(ours, stats.entropy(np.exp(log_probs), axis=-1), atol=1e-12)
    assert (ours >= 0).all()
    assert (ours <= math.log(logits.shape[-1]) + 1e-12).all()


@pytest.mark.parametrize("vocabulary", [1, 2, 50_000])
def test_equal_logits_attain_ln_v_and_one_possible_token_attains_zero(vocabulary: int) -> None:
    equal = law.log_softmax(np.zeros(vocabulary))
    assert law.entropy(equal) == pytest.approx(math.log(vocabulary), abs=1e-9)
    certain = np.full(vocabulary, -np.inf)
    certain[0] = -3.0
    assert law.entropy(law.log_softmax(certain)) == 0.0


@laws
@given(rows, temperatures)
def test_row_statistics_equal_their_definitions(logits: NDArray[np.float64], temperature: float) -> None:
    vocabulary = logits.shape[-1]
    k = (vocabulary + 1) // 2
    found = law.row_statistics(logits, k=k, temperature=temperature)
    log_probs = law.log_softmax(logits / temperature)
    p = np.exp(log_probs)
    h = stats.entropy(p, axis=-1)
    surprise = np.where(p > 0, log_probs, 0.0) + h[..., None]
    np.testing.assert_allclose(found.entropy_nats, h, atol=1e-9)
    np.testing.assert_allclose(found.varentropy_nats2, (p * surprise**2).sum(axis=-1), atol=1e-7)
    np.testing.assert_allclose(found.top_k_mass, np.sort(p, axis=-1)[..., -k:].sum(axis=-1), atol=1e-12)
    best = logits.max(axis=-1)
    np.testing.assert_allclose(
        found.log_sum_exp_nats, best / temperature - log_probs.max(axis=-1), atol=1e-9, rtol=1e-12
    )


@laws
@given(st.integers(0, 10_000), st.floats(0.3, 3))
def test_varentropy_is_the_slope_of_entropy_over_ln_temperature(seed: int, temperature: float) -> None:
    logits, step = random_logits(seed, 40), 1e-4
    above, below = temperature * math.exp(step), temperature * math.exp(-step)
    slope = (law.entropy_and_varentropy(logits, above)[0] - law.entropy_and_varentropy(logits, below)[0]) / (
        2 * step
    )
    assert law.entropy_and_varentropy(logits, temperature)[1] == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("tokens", "maximum"), [(2, 0.4392), (151_936, 36.58)])
def test_largest_varentropy(tokens: int, maximum: float) -> None:
    """Attained by one token against equal others; the figures that `temperature` quotes."""

    def negative(gap: float) -> float:
        logits = np.zeros(tokens)
        logits[0] = gap
        return -float(law.entropy_and_varentropy(logits, 1.0)[1])

    best = optimize.minimize_scalar(negative, bounds=(0, 30), method="bounded")
    assert -best.fun == pytest.approx(maximum, abs=0.005)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(1, 9, 30)
    whole = law.entropy_and_varentropy(logits, 0.7)
    monkeypatch.setattr(law, "_PIECE", 64)
    for one, other in zip(whole, law.entropy_and_varentropy(logits, 0.7), strict=True):
        np.testing.assert_array_equal(one, other)


@laws
@given(st.integers(0, 10_000), st.floats(1e-6, 1))
def test_label_entropy_is_conditional_on_the_mass_it_reports(seed: int, mass: float) -> None:
    labels = law.log_softmax(random_logits(seed, 4, 3))
    found = law.label_entropy(labels + math.log(mass))
    np.testing.assert_allclose(found.entropy_nats, law.entropy(labels), atol=1e-9)
    np.testing.assert_allclose(found.mass, mass, rtol=1e-9)


def test_a_fitted_curve_makes_mean_entropy_equal_mean_surprisal() -> None:
    rng = np.random.default_rng(3)
    honest = law.log_softmax(rng.normal(0, 2, (4000, 30)))
    surprisal = -np.array([row[rng.choice(30, p=np.exp(row))] for row in honest])
    overconfident = law.entropy(law.log_softmax(honest / 0.5))
    curve = law.fit_entropy_curve(overconfident, surprisal)
    calibrated = law.calibrated_entropy(overconfident, curve)
    assert calibrated.mean() == pytest.approx(surprisal.mean(), rel=1e-9)
    assert overconfident.mean() < 0.7 * surprisal.mean()
    for third in np.array_split(np.argsort(overconfident), 3):
        assert calibrated[third].mean() == pytest.approx(law.entropy(honest)[third].mean(), rel=0.1)
    assert (np.diff(law.calibrated_entropy(np.linspace(0, 4, 200), curve)) >= 0).all()


@laws
@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 10)),
    st.integers(0, 1000),
)
def test_a_curve_keeps_the_fit_at_every_step(raw: NDArray[np.float64], seed: int) -> None:
    """Dropping inner knots must not change the least-squares fit, ties in `raw` included."""
    seen = np.random.default_rng(seed).exponential(size=raw.size)
    fitted = law.calibrated_entropy(raw, law.fit_entropy_curve(raw, seen))
    assert (np.diff(fitted[np.argsort(raw)]) >= 0).all()
    levels = {value: seen[fitted == value].mean() for value in np.unique(fitted)}
    for value, mean in levels.items():
        assert mean == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: law.entropy([math.nan, 0.0]), "log_probs must not be NaN"),
        (lambda: law.entropy([0.1, -1.0]), r"log_probs must be <= 0 .*0\.1 at index \(0,\)"),
        (lambda: law.entropy([-1.0, -1.0]), r"must total 1 .*0\.735"),
        (lambda: law.entropy(-1.0), "tokens along its last axis"),
        (lambda: law.entropy(["a"]), "must be numbers"),
        (lambda: law.log_softmax([math.inf, 0.0]), r"below \+inf"),
        (lambda: law.log_softmax([[0.0], [-math.inf]]), r"finite entry.* at index \(1,\)"),
        (lambda: law.log_softmax(np.zeros((2, 0))), "tokens along its last axis"),
        (lambda: law.row_statistics([0.0, 1.0], k=3), r"1\.\.V = 2, got 3"),
        (lambda: law.row_statistics([0.0, 1.0], k=0), r"1\.\.V = 2, got 0"),
        (lambda: law.row_statistics([0.0, 1.0], k=1, temperature=0), "temperature must be > 0"),
        (lambda: law.label_entropy([-math.inf, -math.inf]), "none of them can come"),
        (lambda: law.label_entropy([-0.1, -0.1]), "a label twice"),
        (lambda: law.fit_entropy_curve([1.0], [1.0, 2.0]), "as many surprisals"),
        (lambda: law.fit_entropy_curve([1.0], [-1.0]), "surprisal_nats must be >= 0"),
        (lambda: law.EntropyCurve(np.array([1.0, 1.0]), np.array([0.0, 1.0])), "increase strictly"),
        (lambda: law.EntropyCurve(np.array([1.0, 2.0]), np.array([1.0, 0.5])), "must not decrease"),
        (lambda: law.EntropyCurve(np.array([1.0, 2.0]), np.array([1.0])), "as many calibrated"),
    ],
)
def test_outside_the_domain(call: Callable[[], object], complaint: str) -> None:
    with pytest.raises(DomainError, match=complaint):
        call()
