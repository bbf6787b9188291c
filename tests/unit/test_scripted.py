"""What the scripted engine does beyond the contract."""

import asyncio
import math

import pytest

from eti_rank.engine.protocol import Capability, EngineState, Labels, Likelihood, ScoringStep
from eti_rank.engine.scripted import PrefixCache, Scripted, hashed_logprobs
from eti_rank.errors import EngineUnavailable, UnsupportedRequest
from eti_rank.settings import EngineSettings


def step(token_ids: tuple[int, ...], readout: Labels | Likelihood) -> ScoringStep:
    return ScoringStep(step_id="s", token_ids=token_ids, readout=readout)


def test_the_hash_is_the_same_in_every_process() -> None:
    values = hashed_logprobs(step((1, 2, 3), Labels((7, 8))))
    assert values == pytest.approx((-14.792153, -13.482657), abs=1e-6)


def test_labels_and_likelihood_read_the_same_distribution() -> None:
    (as_label,) = hashed_logprobs(step((1, 2, 3), Labels((4,))))
    (as_likelihood,) = hashed_logprobs(step((1, 2, 3, 4), Likelihood(3)))
    assert as_label == as_likelihood


def test_probabilities_of_all_tokens_never_pass_one() -> None:
    values = hashed_logprobs(step((5,), Labels(tuple(range(1000)))))
    assert sum(map(math.exp, values)) <= 1000 / (1 << 18)


def test_the_cache_drops_the_oldest_leaf_first() -> None:
    cache = PrefixCache(4)
    cache.insert((1, 2, 3))
    cache.insert((1, 9))
    assert cache.match((1, 2, 3)) == 3
    cache.insert((1, 8))
    assert cache.match((1, 9)) == 1
    assert cache.match((1, 2, 3)) == 3


async def test_the_position_before_the_first_value_is_computed() -> None:
    engine = Scripted(EngineSettings(), "m", 100)
    await engine.start()
    ids = tuple(range(50))
    for readout, cached in ((Labels((1,)), 49), (Likelihood(30), 29)):
        await engine.score(step(ids, readout))
        assert (await engine.score(step(ids, readout))).cached_tokens == cached


async def test_without_radix_cache_nothing_is_cached() -> None:
    engine = Scripted(EngineSettings(radix_cache=False), "m", 100)
    await engine.start()
    ids = tuple(range(50))
    await engine.score(step(ids, Labels((1,))))
    assert (await engine.score(step(ids, Labels((1,))))).cached_tokens == 0


async def test_a_capability_that_is_not_offered_raises() -> None:
    engine = Scripted(EngineSettings(), "m", 100, capabilities=frozenset({Capability.LABEL}))
    await engine.start()
    with pytest.raises(UnsupportedRequest, match="likelihood"):
        await engine.score(step((1, 2, 3), Likelihood(1)))


async def test_nine_steps_over_three_places_take_three_rounds() -> None:
    engine = Scripted(EngineSettings(max_running_requests=3), "m", 100, token_s=0.02)
    await engine.start()
    loop = asyncio.get_running_loop()
    started = loop.time()
    await asyncio.gather(*(engine.score(step((n,), Labels((1,)))) for n in range(9)))
    assert loop.time() - started >= 3 * 0.02


async def test_it_starts_once() -> None:
    engine = Scripted(EngineSettings(), "m", 100)
    await engine.start()
    with pytest.raises(EngineUnavailable):
        await engine.start()


async def test_death_during_the_start_is_a_failed_start() -> None:
    engine = Scripted(EngineSettings(), "m", 100, start_s=0.02)
    start = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    engine.kill()
    with pytest.raises(EngineUnavailable):
        await start
    assert engine.state is EngineState.DOWN
