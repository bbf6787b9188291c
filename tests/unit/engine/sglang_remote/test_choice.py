"""Which worker takes a step."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eti_rank.engine.protocol import Labels, ScoringStep
from eti_rank.engine.sglang_remote.choice import choose, rendezvous

WORKERS = [f"http://worker-{number}:30000" for number in range(4)]
loads = st.dictionaries(st.sampled_from(WORKERS), st.integers(0, 200), min_size=1)
tokens = st.lists(st.integers(0, 200_000), min_size=2, max_size=80).map(tuple)


def step(token_ids: tuple[int, ...], shared: int) -> ScoringStep:
    return ScoringStep(step_id="s", token_ids=token_ids, readout=Labels((1,)), shared_prefix_tokens=shared)


def idle(names: list[str]) -> dict[str, int]:
    return dict.fromkeys(names, 0)


@given(tokens, tokens)
def test_idle_workers_take_a_shared_prefix_whatever_follows(
    prefix: tuple[int, ...], tail: tuple[int, ...]
) -> None:
    first = choose(step(prefix, len(prefix)), idle(WORKERS), 1.25)
    assert choose(step(prefix + tail, len(prefix)), idle(WORKERS), 1.25) == first


@given(tokens, loads, st.floats(1.01, 4.0))
def test_no_worker_goes_beyond_the_bound(
    prefix: tuple[int, ...], open_steps: dict[str, int], bound: float
) -> None:
    chosen = choose(step(prefix, len(prefix)), open_steps, bound)
    average = (sum(open_steps.values()) + 1) / len(open_steps)
    assert open_steps[chosen] + 1 <= math.ceil(bound * average)


@given(tokens, loads)
def test_without_a_shared_prefix_the_least_loaded_takes_it(
    token_ids: tuple[int, ...], open_steps: dict[str, int]
) -> None:
    assert open_steps[choose(step(token_ids, 0), open_steps, 1.25)] == min(open_steps.values())


@given(tokens, st.sampled_from(WORKERS))
def test_a_worker_that_leaves_takes_only_its_own_prefixes_along(prefix: tuple[int, ...], left: str) -> None:
    before = rendezvous(prefix, WORKERS)
    after = rendezvous(prefix, [name for name in WORKERS if name != left])
    assert after == [name for name in before if name != left]


def test_order_of_the_names_does_not_matter() -> None:
    assert rendezvous((1, 2, 3), WORKERS) == rendezvous((1, 2, 3), WORKERS[::-1])


def test_prefixes_spread_evenly() -> None:
    first = Counter(rendezvous((number, 7), WORKERS)[0] for number in range(4000))
    # Binomial with p = 1/4: the standard deviation is 27.
    assert all(count == pytest.approx(1000, abs=5 * 27) for count in first.values())
    assert len(first) == 4


def test_a_burst_of_one_prefix_overflows_to_the_next() -> None:
    open_steps = idle(WORKERS[:2])
    for _ in range(100):
        open_steps[choose(step((5, 6), 2), open_steps, 1.25)] += 1
    assert sorted(open_steps.values()) == [37, 63]
