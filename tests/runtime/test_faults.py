"""What happens when SGLang's processes die, and when a caller goes away."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from eti_rank.engine.protocol import EngineState, Labels, Likelihood, ScoringStep
from eti_rank.errors import ConfigurationError, EngineUnavailable, UnsupportedRequest
from tests.runtime.conftest import MAX_PROMPT_TOKENS, started

PROMPT = tuple(20 + n % 1000 for n in range(400))


def step(number: int = 0) -> ScoringStep:
    return ScoringStep(step_id=f"s{number}", token_ids=(*PROMPT, 20 + number), readout=Labels((5,)))


@pytest.mark.parametrize("victim", [0, 1], ids=["scheduler", "detokenizer"])
async def test_death_fails_open_steps_within_seconds(tiny_llama: Path, victim: int) -> None:
    async with started(tiny_llama) as engine:
        open_steps = [asyncio.create_task(engine.score(step(n))) for n in range(64)]
        await asyncio.sleep(0.02)
        os.kill(engine.process_ids[victim], signal.SIGKILL)
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*open_steps, return_exceptions=True)
            await engine.wait_down()
        assert engine.state is EngineState.DOWN
        assert any(isinstance(outcome, EngineUnavailable) for outcome in outcomes)
        assert not any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        with pytest.raises(EngineUnavailable, match="down"):
            await engine.score(step())


async def test_close_leaves_no_process(tiny_llama: Path) -> None:
    async with started(tiny_llama) as engine:
        pids = engine.process_ids
        assert all(psutil.pid_exists(pid) for pid in pids)
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_closed_engines_can_be_collected(tiny_llama: Path) -> None:
    async with started(tiny_llama) as engine:
        open_step = asyncio.create_task(engine.score(step()))
        await asyncio.sleep(0.01)
        os.kill(engine.process_ids[0], signal.SIGKILL)  # what is sent now stays unsent
        with contextlib.suppress(EngineUnavailable):
            await open_step
    del engine, open_step
    async with asyncio.timeout(10):
        await asyncio.to_thread(gc.collect)


async def test_cancelled_steps_leave_the_runtime(tiny_llama: Path) -> None:
    async with started(tiny_llama, max_running_requests=2) as engine:
        abandoned = [asyncio.create_task(engine.score(step(n))) for n in range(64)]
        await asyncio.sleep(0.02)
        for task in abandoned:
            task.cancel()
        await asyncio.gather(*abandoned, return_exceptions=True)
        async with asyncio.timeout(5):
            await engine.score(step(99))
        async with asyncio.timeout(5):  # the aborted ones are forgotten as their abort is confirmed
            while engine.unfinished_requests:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("token_ids", "readout", "complaint"),
    [
        ((), Labels((5,)), "0 tokens"),
        (tuple([20] * 5000), Labels((5,)), "5000 tokens"),
        ((20, 21), Labels(()), "at least one label"),
        ((20, 10**6), Labels((5,)), "outside the vocabulary"),
        ((20, 21), Labels((-1,)), "outside the vocabulary"),
        ((20, 21), Likelihood(0), "position 0"),
        ((20, 21), Likelihood(2), "position 2"),
    ],
)
async def test_impossible_step_is_refused_and_harms_nobody(
    tiny_llama: Path, token_ids: tuple[int, ...], readout: Labels | Likelihood, complaint: str
) -> None:
    async with started(tiny_llama) as engine:
        with pytest.raises(UnsupportedRequest, match=complaint):
            await engine.score(ScoringStep(step_id="bad", token_ids=token_ids, readout=readout))
        await engine.score(step())


async def test_longest_prompt_is_served(tiny_llama: Path) -> None:
    async with started(tiny_llama) as engine:
        assert engine.description.max_prompt_tokens >= MAX_PROMPT_TOKENS
        for readout in (Labels((5,)), Likelihood(1)):
            longest = tuple(20 + n % 1000 for n in range(engine.description.max_prompt_tokens))
            evidence = await engine.score(ScoringStep(step_id="x", token_ids=longest, readout=readout))
            assert evidence.prompt_tokens == len(longest)


async def test_flushed_cache_is_cold(tiny_llama: Path) -> None:
    async with started(tiny_llama) as engine:
        for _ in range(5):
            assert (await engine.score(step())).cached_tokens == 0
            assert (await engine.score(step())).cached_tokens > 0
            await engine.flush_cache()


async def test_without_sglang_the_installation_is_at_fault(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "eti_rank.engine.sglang_local.launch", raising=False)
    monkeypatch.setitem(sys.modules, "sglang.srt.entrypoints.engine", None)
    with pytest.raises(ConfigurationError, match="SGLang is not installed here"):
        async with started(tiny_llama):
            pass
