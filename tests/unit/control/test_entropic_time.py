from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from eti_rank.control import entropic_time as law
from eti_rank.control import rows
from eti_rank.control.entropy_bounds import EntropyBounds
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=100)
nats = st.floats(0, 12)
paths = st.lists(nats, min_size=1, max_size=30)


def run(lower: list[float], upper: list[float]) -> list[law.EntropicTime]:
    bounds = [EntropyBounds(np.asarray(a), np.asarray(b)) for a, b in zip(lower, upper, strict=True)]
    history = [law.start(bounds[0])]
    for interval in bounds[1:]:
        history.append(law.advance(history[-1], interval))
    return history


def printed_in_the_paper(path: list[float]) -> float:
    return float(np.maximum(0, -np.diff(path)).sum())


@laws
@given(paths)
def test_exact_entropies_give_the_papers_sum(path: list[float]) -> None:
    last = run(path, path)[-1]
    assert last.tau_nats == pytest.approx(printed_in_the_paper(path), abs=1e-9)
    assert last.net_nats == pytest.approx(path[0] - path[-1], abs=1e-9)


@laws
@given(st.lists(st.tuples(nats, nats), min_size=1, max_size=40))
def test_tau_never_decreases(intervals: list[tuple[float, float]]) -> None:
    lower, upper = ([f(i) for i in intervals] for f in (min, max))
    history = run(lower, upper)
    assert history[0].tau_nats == 0
    assert (np.diff([h.tau_nats for h in history]) >= 0).all()


@laws
@given(st.lists(st.tuples(nats, st.floats(0, 3)), min_size=2, max_size=12))
def test_tau_is_the_least_entropic_time_of_any_path_through_the_intervals(
    intervals: list[tuple[float, float]],
) -> None:
    """The oracle is a linear program: minimise sum d_t with d_t >= H[t-1] - H[t], d >= 0, L <= H <= U."""
    lower = np.array([a for a, _ in intervals])
    upper = lower + [b for _, b in intervals]
    steps = len(lower)
    falls = np.eye(steps)[:-1] - np.eye(steps)[1:]
    least = optimize.linprog(
        c=np.r_[np.zeros(steps), np.ones(steps - 1)],
        A_ub=np.c_[falls, -np.eye(steps - 1)],
        b_ub=np.zeros(steps - 1),
        bounds=[*zip(lower, upper, strict=True), *[(0, None)] * (steps - 1)],
    )
    assert run(list(lower), list(upper))[-1].tau_nats == pytest.approx(least.fun, abs=1e-7)


@laws
@given(nats, st.floats(0.01, 1), st.integers(0, 1000))
def test_noise_within_the_margin_earns_nothing(level: float, margin: float, seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(-margin, margin, 200)
    estimates = np.maximum(level + noise, 0.0)
    time = law.start(law.around(estimates[0], margin))
    for estimate in estimates[1:]:
        time = law.advance(time, law.around(estimate, margin))
    # two intervals can share nothing but the level itself, which rounding may part
    assert time.tau_nats <= 1e-12
    assert printed_in_the_paper(list(estimates)) > 10 * margin


def test_the_papers_sum_earns_half_a_standard_deviation_per_step_of_noise() -> None:
    noise = np.random.default_rng(0).normal(5, 0.1, 100_000)
    assert printed_in_the_paper(list(noise)) / len(noise) == pytest.approx(0.564 * 0.1, rel=0.02)


def test_a_slow_descent_counts_although_neighbours_overlap() -> None:
    estimates = np.linspace(6, 2, 401)
    time = law.start(law.around(estimates[0], 0.05))
    for estimate in estimates[1:]:
        time = law.advance(time, law.around(estimate, 0.05))
    assert time.tau_nats == pytest.approx(4 - 2 * 0.05)
    assert time.net_nats == pytest.approx(4)


def test_going_up_and_down_is_time_but_no_net() -> None:
    last = run([1, 3, 1, 3, 1], [1, 3, 1, 3, 1])[-1]
    assert last.tau_nats == 4
    assert last.net_nats == 0


def test_an_estimate_inside_its_interval_serves_the_net() -> None:
    bounds = EntropyBounds(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    time = law.advance(law.start(bounds, estimate_nats=[1.5, 3.5]), bounds, estimate_nats=[2.0, 2.0])
    np.testing.assert_array_equal(time.net_nats, [-0.5, 1.5])


def test_a_batch_is_its_rows() -> None:
    rng = np.random.default_rng(2)
    lower = rng.uniform(0, 5, (20, 6))
    upper = lower + rng.uniform(0, 1, (20, 6))
    together = law.start(EntropyBounds(lower[0], upper[0]))
    for step in range(1, 20):
        together = law.advance(together, EntropyBounds(lower[step], upper[step]))
    alone = [run(list(lower[:, row]), list(upper[:, row]))[-1] for row in range(6)]
    np.testing.assert_array_equal(together.tau_nats, [time.tau_nats for time in alone])
    np.testing.assert_array_equal(together.net_nats, rows.stack(alone).net_nats)


@pytest.mark.parametrize("unit", list(law.CostUnit))
def test_efficiency_keeps_its_unit(unit: law.CostUnit) -> None:
    spent = law.Cost(150, unit) + law.Cost(50.0, unit)
    found = law.efficiency([1.0, 4.0], spent)
    np.testing.assert_allclose(found.nats_per_unit, [0.005, 0.02])
    assert found.unit is unit


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: law.Cost(1, law.CostUnit.TOKENS) + law.Cost(1, law.CostUnit.SECONDS), "tokens and seconds"),
        (lambda: law.Cost(-1, law.CostUnit.TOKENS), "amount must be >= 0"),
        (lambda: law.efficiency(1, law.Cost(0, law.CostUnit.FLOPS)), r"cost\.amount must be > 0"),
        (lambda: law.efficiency(-1, law.Cost(1, law.CostUnit.FLOPS)), "tau_nats must be >= 0"),
        (lambda: law.around(-1), "entropy_nats must be >= 0"),
        (lambda: law.around(1, -1), "margin_nats must be >= 0"),
        (lambda: law.around(float("nan")), "must not be NaN"),
        (
            lambda: law.start(EntropyBounds(np.array([1.0, 3.0]), np.array([2.0, 2.0]))),
            r"lower_nats must be <= bounds\.upper_nats, got 3 at index \(1,\)",
        ),
        (lambda: law.start(law.around(1), estimate_nats=float("inf")), "estimate_nats must be finite"),
    ],
)
def test_outside_the_domain(call: Callable[[], object], complaint: str) -> None:
    with pytest.raises(DomainError, match=complaint):
        call()
