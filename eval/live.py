"""Real engines for a study, each in a process of its own, asleep while another one works.

A study sends the same loads to several engines in turn, so that whatever else the machine does falls on
all of them alike.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from eti_rank.engine.protocol import Engine, Evidence, Generated, GenerationStep, ScoringStep, generate_whole
from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.settings import EngineSettings

START_LIMIT_S = 300
Step = ScoringStep | GenerationStep


@dataclass(frozen=True, slots=True)
class Load:
    """Steps in order of submission, to an engine whose cache is emptied first if wished."""

    steps: tuple[Step, ...]
    at_s: tuple[float, ...] = ()
    """When each step is submitted; empty: all at once."""
    cold: bool = True


@dataclass(frozen=True, slots=True)
class Done:
    """What an engine made of a load."""

    seconds: tuple[float, ...]
    """From the start of the load to the end of each step, in the order of the steps."""
    results: tuple[Evidence | Generated, ...]

    @property
    def makespan_s(self) -> float:
        """Until the last step ended."""
        return max(self.seconds)


Ask = Callable[[Load], Done]


@contextmanager
def engines(
    checkpoint: str, settings: Mapping[str, Mapping[str, Any]], *, max_prompt_tokens: int
) -> Iterator[dict[str, Ask]]:
    """One engine per entry of `settings`, which are those of `EngineSettings`; all ready, all idle.

    Raises:
        RuntimeError: one did not start.
    """
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_engine(checkpoint, dict(chosen), max_prompt_tokens))
            for name, chosen in settings.items()
        }


@contextmanager
def _engine(checkpoint: str, settings: dict[str, Any], max_prompt_tokens: int) -> Iterator[Ask]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, checkpoint, settings, max_prompt_tokens))
    process.start()
    try:
        if not ours.poll(START_LIMIT_S) or ours.recv() != "ready":
            raise RuntimeError(f"the engine with {settings} did not start")

        def ask(load: Load) -> Done:
            ours.send(load)
            answer = ours.recv()
            if isinstance(answer, BaseException):
                raise answer
            assert isinstance(answer, Done)
            return answer

        yield ask
        ours.send(None)
    finally:
        process.join(timeout=60)
        process.kill()


def _run(channel: Connection, checkpoint: str, settings: dict[str, Any], max_prompt_tokens: int) -> None:
    asyncio.run(_serve(channel, checkpoint, settings, max_prompt_tokens))


async def _serve(
    channel: Connection, checkpoint: str, settings: dict[str, Any], max_prompt_tokens: int
) -> None:
    engine = SglangLocal(EngineSettings.model_validate(settings), checkpoint, max_prompt_tokens)
    await engine.start()
    channel.send("ready")
    try:
        while (load := await asyncio.to_thread(channel.recv)) is not None:
            try:
                channel.send(await _do(engine, load))
            except Exception as error:  # noqa: BLE001  # raised again on the other side
                channel.send(error)
    finally:
        await engine.close()


async def _do(engine: SglangLocal, load: Load) -> Done:
    if load.cold:
        await engine.flush_cache()
    started = time.perf_counter()
    times = load.at_s or (0.0,) * len(load.steps)
    timed = (_timed(engine, step, started, at_s) for step, at_s in zip(load.steps, times, strict=True))
    ended = await asyncio.gather(*timed)
    return Done(seconds=tuple(seconds for seconds, _ in ended), results=tuple(result for _, result in ended))


async def _timed(
    engine: Engine, step: Step, started: float, at_s: float
) -> tuple[float, Evidence | Generated]:
    await asyncio.sleep(at_s - (time.perf_counter() - started))
    step = replace(step, arrived_s=time.time())
    if isinstance(step, ScoringStep):
        result: Evidence | Generated = await engine.score(step)
    else:
        result = await generate_whole(engine, step)
    return time.perf_counter() - started, result


def in_turn(asks: Mapping[str, Ask], loads: Sequence[Load]) -> list[dict[str, Done]]:
    """Give each load to each engine; who goes first changes from load to load."""
    names, rows = list(asks), []
    for number, load in enumerate(loads):
        turn = names[number % len(names) :] + names[: number % len(names)]
        done = {name: asks[name](load) for name in turn}
        rows.append({name: done[name] for name in names})
    return rows
