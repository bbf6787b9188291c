from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eti_rank.control import priority as law
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=100)
AGEING = law.Ageing(ceiling=8.0, per_second=0.5)
"""Powers of two keep the keys of this module exact: ties are ties."""
RATE = 1.0
Keys = Callable[[NDArray[np.float64], NDArray[np.float64], float], NDArray[np.float64]]


@dataclass(frozen=True)
class Stream:
    """One request per row: when it arrives, its priority, and its work at `RATE`."""

    arrival_s: NDArray[np.float64]
    pi: NDArray[np.float64]
    work: NDArray[np.float64]


def with_ageing(pi: NDArray[np.float64], arrival_s: NDArray[np.float64], now_s: float) -> NDArray[np.float64]:
    return law.aged(pi, arrival_s, AGEING, now_s=now_s)


def without_ageing(
    pi: NDArray[np.float64], arrival_s: NDArray[np.float64], now_s: float
) -> NDArray[np.float64]:
    return pi


def serve(stream: Stream, keys: Keys) -> NDArray[np.float64]:
    """When each request begins on one server that never idles while work waits and never interrupts it."""
    begun, now = np.full(len(stream.pi), np.inf), 0.0
    while np.isinf(begun).any():
        waiting = np.flatnonzero(np.isinf(begun) & (stream.arrival_s <= now))
        if not len(waiting):
            now = stream.arrival_s[np.isinf(begun)].min()
            continue
        arrivals = stream.arrival_s[waiting]
        first = law.order(keys(stream.pi[waiting], arrivals, now), arrival_s=arrivals, index=waiting)[0]
        begun[waiting[first]] = now
        now += stream.work[waiting[first]] / RATE
    return begun


def bound_s(stream: Stream, begun: NDArray[np.float64], request: int) -> float:
    last_rival = stream.arrival_s[request] + AGEING.overtaking_s
    rivals = stream.arrival_s < last_rival
    rivals[request] = False
    served = np.clip((last_rival - begun) * RATE, 0, stream.work)
    return law.waiting_bound_s(AGEING, work_ahead=float((stream.work - served)[rivals].sum()), rate=RATE)


@laws
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from([0.0, 0.5, 4.0, 8.0, 1000.0]), st.integers(1, 9)),
        min_size=1,
        max_size=50,
    )
)
def test_nobody_waits_beyond_the_bound_whatever_arrives(requests: list[tuple[int, float, int]]) -> None:
    stream = Stream(*(np.array(column, dtype=np.float64) for column in zip(*requests, strict=True)))
    begun = serve(stream, with_ageing)
    for request in range(len(requests)):
        assert begun[request] - stream.arrival_s[request] <= bound_s(stream, begun, request)


def adversary(seconds: int) -> Stream:
    """A request worth nothing at 0, and from then on one of the highest priority per second: load 1."""
    rivals = np.arange(seconds, dtype=np.float64)
    return Stream(np.r_[0.0, rivals], np.r_[0.0, np.full(seconds, 8.0)], np.ones(seconds + 1))


@pytest.mark.parametrize("seconds", [50, 100, 200])
def test_an_adversary_starves_by_priority_alone_and_attains_the_bound_with_ageing(seconds: int) -> None:
    stream = adversary(seconds)
    assert serve(stream, without_ageing)[0] == seconds
    begun = serve(stream, with_ageing)
    assert begun[0] == bound_s(stream, begun, 0) == AGEING.overtaking_s


def test_priority_without_a_ceiling_starves_in_spite_of_ageing() -> None:
    """Why pi is cut at P: gains that keep growing outrun any fixed price of waiting."""
    seconds = 200
    rivals = np.arange(seconds, dtype=np.float64)
    stream = Stream(np.r_[0.0, rivals], np.r_[0.0, 1 + rivals], np.ones(seconds + 1))

    def uncut(pi: NDArray[np.float64], arrival_s: NDArray[np.float64], now_s: float) -> NDArray[np.float64]:
        return pi + AGEING.per_second * (now_s - arrival_s)

    assert serve(stream, uncut)[0] == seconds
    assert serve(stream, with_ageing)[0] <= AGEING.overtaking_s + 1


@laws
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.randoms())
def test_order_is_total(pairs: list[tuple[int, int]], random: object) -> None:
    keys, arrivals = np.array(pairs, dtype=np.float64).T
    index = np.arange(len(pairs))
    shuffle = np.array(random.sample(range(len(pairs)), len(pairs)))  # type: ignore[attr-defined]
    order = index[law.order(keys, arrival_s=arrivals, index=index)]
    again = index[shuffle][law.order(keys[shuffle], arrival_s=arrivals[shuffle], index=index[shuffle])]
    np.testing.assert_array_equal(order, again)
    ranked = [(-keys[i], arrivals[i], i) for i in order]
    assert ranked == sorted(ranked)


@laws
@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 100)), min_size=1, max_size=30),
    st.integers(100, 10_000),
)
def test_order_stays_while_nothing_arrives(pairs: list[tuple[int, int]], later: int) -> None:
    pi, arrivals = np.array(pairs, dtype=np.float64).T / [[8], [1]]
    now, then = (
        law.order(law.aged(pi, arrivals, AGEING, now_s=at), arrival_s=arrivals, index=np.arange(len(pairs)))
        for at in (100, later)
    )
    np.testing.assert_array_equal(now, then)


def test_priority_is_gain_per_cost_in_all_three_resources() -> None:
    demand = law.Demand(
        uncached_tokens=[100, 0, 0, 10], kv_tokens=[0, 100, 0, 20], decode_tokens=[0, 0, 100, 30]
    )
    prices = law.Prices(per_uncached_token=1.0, per_kv_token=0.1, per_decode_token=2.0)
    costs = law.cost(demand, prices)
    np.testing.assert_allclose(costs, [100, 10, 200, 72])
    np.testing.assert_allclose(law.priority([1, 1, 1, 0.72], costs), [0.01, 0.1, 0.005, 0.01])


def test_a_cheap_step_goes_before_a_dear_one_of_equal_gain() -> None:
    pi = law.priority([0.3, 0.3, 0.9], [100, 20, 90])
    assert list(law.order(pi, arrival_s=[0, 0, 0], index=[0, 1, 2])) == [1, 2, 0]


FREE_KV = law.Demand(uncached_tokens=[1], kv_tokens=[-1], decode_tokens=[1])


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: law.priority([1, -1], [1, 1]), r"expected_gain must be >= 0, got -1 at index \(1,\)"),
        (lambda: law.priority([1], [0]), "costs must be > 0"),
        (lambda: law.priority([np.nan], [1]), "expected_gain must not be NaN"),
        (lambda: law.Prices(per_uncached_token=-1), "prices must be >= 0"),
        (lambda: law.Prices(per_uncached_token=0, per_decode_token=0), "must not all be 0"),
        (lambda: law.Ageing(ceiling=0, per_second=1), "ceiling must be > 0"),
        (lambda: law.Ageing(ceiling=1, per_second=0), "per_second must be > 0"),
        (lambda: law.aged([1], [5], AGEING, now_s=4), r"arrival_s must be <= now_s = 4, got 5"),
        (lambda: law.aged([-1], [5], AGEING, now_s=6), "pi must be >= 0"),
        (lambda: law.order([np.nan], arrival_s=[0], index=[0]), "keys must not be NaN"),
        (lambda: law.order([1, 2], arrival_s=[0], index=[0]), "must share a shape"),
        (lambda: law.cost(FREE_KV, law.Prices()), "kv_tokens must be >= 0"),
        (lambda: law.waiting_bound_s(AGEING, work_ahead=1, rate=0), "rate must be > 0"),
        (lambda: law.waiting_bound_s(AGEING, work_ahead=-1, rate=1), "work_ahead must be >= 0"),
    ],
)
def test_outside_the_domain(call: Callable[[], object], complaint: str) -> None:
    with pytest.raises(DomainError, match=complaint):
        call()
