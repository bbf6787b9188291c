"""The scheduling hook: its order by itself, and in the real scheduler."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eti_rank.engine import wire
from eti_rank.engine.protocol import Evidence, Labels, ScoringStep, score_all
from eti_rank.engine.sglang_local import SglangLocal
from tests.runtime.conftest import started

PREFIX = tuple(20 + n % 1000 for n in range(300))


@pytest.fixture
async def queue(tiny_llama: Path) -> Any:
    async with started(tiny_llama):  # SGLang is imported with the right environment
        from eti_rank.runtime.scheduling import EntropicQueue

        config = wire.SchedulingConfig(ceiling=1.0, ageing_per_second=0.1, per_kv_token=0.0)
        return EntropicQueue(config)


NOW_S = time.time()


def waiting(
    name: str, *, gain: float = 0.0, tokens: int = 100, waited_s: float = 0.0, cached: int = 0
) -> Any:
    told = wire.StepParams(expected_gain=gain, arrived_s=NOW_S - waited_s)
    params = SimpleNamespace(custom_params=told.encode(), max_new_tokens=0)
    return SimpleNamespace(
        name=name,
        sampling_params=params,
        origin_input_ids=list(range(tokens)),
        num_matched_prefix_tokens=cached,
    )


def order(queue: Any, *reqs: Any) -> str:
    line = list(reqs)
    queue.sort(line, NOW_S)
    return "".join(req.name for req in line)


async def test_more_gain_and_less_cost_come_first(queue: Any) -> None:
    assert order(queue, waiting("a", gain=10), waiting("b", gain=50)) == "ba"
    assert order(queue, waiting("a", gain=50), waiting("b", gain=50, tokens=60)) == "ba"
    assert order(queue, waiting("a", gain=50), waiting("b", gain=50, cached=90)) == "ba"


async def test_waiting_overtakes_gain_in_the_end(queue: Any) -> None:
    assert order(queue, waiting("a", gain=100), waiting("b", waited_s=9.9)) == "ab"
    assert order(queue, waiting("a", gain=100), waiting("b", waited_s=10.1)) == "ba"
    assert order(queue, waiting("a", gain=1e9), waiting("b", waited_s=10.1)) == "ba"  # the ceiling holds


async def test_equals_keep_their_order(queue: Any) -> None:
    assert order(queue, *(waiting(name, gain=5) for name in "abcdef")) == "abcdef"


async def test_a_warmed_prefix_moves_a_request_up(queue: Any) -> None:
    first, second = waiting("a", gain=20), waiting("b", gain=15)
    assert order(queue, first, second) == "ab"
    second.num_matched_prefix_tokens = 80
    assert order(queue, first, second) == "ba"


async def test_requests_of_others_are_queued_too(queue: Any) -> None:
    foreign = waiting("a")
    foreign.sampling_params.custom_params = None
    assert order(queue, foreign, waiting("b", gain=50)) == "ba"


def step(name: str, tokens: tuple[int, ...], **fields: Any) -> ScoringStep:
    return ScoringStep(step_id=name, token_ids=tokens, readout=Labels((5,)), **fields)


async def finishing_order(engine: SglangLocal, steps: list[ScoringStep]) -> list[str]:
    finished: list[str] = []

    async def run(one: ScoringStep) -> None:
        await engine.score(one)
        finished.append(one.step_id)

    await asyncio.gather(*(run(one) for one in steps))
    return finished


async def test_the_scheduler_serves_gain_first(tiny_llama: Path) -> None:
    now = time.time()
    async with started(tiny_llama, max_running_requests=1) as engine:
        assert wire.SCHEDULING in engine.description.hooks
        steps = [
            step(
                f"{'high' if n % 2 else 'low'}-{n}",
                (*PREFIX[n:], 20 + n),
                expected_gain=n % 2 * 100,
                arrived_s=now,
            )
            for n in range(40)
        ]
        finished = await finishing_order(engine, steps)
    high = [place for place, name in enumerate(finished) if name.startswith("high")]
    low = [place for place, name in enumerate(finished) if name.startswith("low")]
    # The first few are taken before the queue has formed.
    assert sorted(high)[len(high) // 2] < sorted(low)[len(low) // 4]


async def test_siblings_wait_until_one_has_warmed_their_prefix(tiny_llama: Path) -> None:
    async with started(tiny_llama) as engine:
        busy = step("busy", tuple(500 + n for n in range(500)) * 2)  # so that the others meet in the queue
        steps = [step(f"s{n}", (*PREFIX, 30 + n, 40 + n), shared_prefix_tokens=len(PREFIX)) for n in range(8)]
        evidence: list[Evidence] = await score_all(engine, [busy, *steps])
    computed = sum(one.prompt_tokens - one.cached_tokens for one in evidence[1:])
    assert computed < len(PREFIX) + 8 * 8


async def test_only_cold_siblings_behind_one_in_the_batch_are_held(queue: Any) -> None:
    from eti_rank.runtime.scheduling import _is_held

    def sibling(name: str, tokens: list[int], *, prefix_len: int = 0) -> Any:
        made = waiting(name)
        made.origin_input_ids, made.prefix_len = tokens, prefix_len
        told = wire.StepParams(arrived_s=NOW_S, shared_prefix_tokens=50)
        made.sampling_params.custom_params = told.encode()
        return made

    shared = list(range(50))
    first, second = sibling("a", [*shared, 60]), sibling("b", [*shared, 61])
    warm, stranger = sibling("c", [*shared, 62], prefix_len=50), sibling("d", list(range(7, 60)))
    queue.sort([first, second, warm, stranger], NOW_S)
    assert not _is_held(first, [])
    assert _is_held(second, [first])
    assert not _is_held(warm, [first])
    assert not _is_held(stranger, [first])
    assert not _is_held(waiting("foreign"), [first])
