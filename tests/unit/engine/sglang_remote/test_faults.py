"""Workers that fail, fall silent, die, drain and come back."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eti_rank import __version__
from eti_rank.engine import wire
from eti_rank.engine.factory import create_engine
from eti_rank.engine.protocol import EngineState, score_all
from eti_rank.engine.scripted import hashed_logprobs
from eti_rank.engine.supervisor import SupervisedEngine
from eti_rank.errors import EngineUnavailable
from eti_rank.settings import EngineSettings
from tests.fake_worker import DROP, SILENCE, FakeWorker, running, write_config
from tests.unit.engine.sglang_remote.conftest import MAX_PROMPT_TOKENS, QUICK, started, step
from tests.unit.engine.sglang_remote.test_scoring import until

PREFERRED = 4
"""Shared tokens, by which all steps of this module prefer one worker while that is idle."""


@pytest.fixture
def pair() -> Iterator[tuple[FakeWorker, FakeWorker]]:
    workers = (FakeWorker(), FakeWorker())
    with running(*workers):
        yield workers


def in_order(pair: tuple[FakeWorker, FakeWorker]) -> tuple[FakeWorker, FakeWorker]:
    """The worker that got a step so far, and the other."""
    first, second = pair
    return (first, second) if first.bodies else (second, first)


@pytest.mark.parametrize("outcome", [500, 502, 503, 401, 404, DROP])
async def test_a_fault_of_a_worker_is_made_good_by_another(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker], outcome: int | str
) -> None:
    async with started(tmp_path, *pair) as engine:
        await engine.score(step(0, shared=PREFERRED))
        preferred, other = in_order(pair)
        preferred.outcomes = [outcome]
        evidence = await engine.score(step(1, shared=PREFERRED))
        assert evidence.logprobs == pytest.approx(hashed_logprobs(step(1)))
        assert (len(preferred.bodies), len(other.bodies)) == (2, 1)
        await until(lambda: engine.workers[preferred.url] == "ready")
        await engine.score(step(2, shared=PREFERRED))
        assert (len(preferred.bodies), len(other.bodies)) == (3, 1)


async def test_a_busy_worker_is_left_alone_but_not_suspect(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair, health_interval_s=60.0) as engine:
        await engine.score(step(0, shared=PREFERRED))
        preferred, other = in_order(pair)
        preferred.outcomes = [429]
        await engine.score(step(1, shared=PREFERRED))
        assert (len(preferred.bodies), len(other.bodies)) == (2, 1)
        assert set(engine.workers.values()) == {"ready"}


async def test_attempts_are_counted_and_wait_longer_each_time(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, pair[0], max_attempts=4, backoff_s=0.1) as engine:
        pair[0].outcomes = [500] * 10
        began_s = time.monotonic()
        with pytest.raises(EngineUnavailable, match=r"4 attempts; at last /generate .* told to say 500"):
            await engine.score(step())
        assert time.monotonic() - began_s >= (0.1 + 0.2 + 0.4) / 2
        assert len(pair[0].bodies) == 4


async def test_texts_for_callers_do_not_name_the_worker(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair, max_attempts=2) as engine:
        for outcome in (500, DROP):
            for worker in pair:
                worker.outcomes = [outcome] * 4
            with pytest.raises(EngineUnavailable) as raised:
                await engine.score(step())
            assert "127.0.0.1" not in str(raised.value)
            for worker in pair:
                worker.outcomes = []


async def test_a_step_never_lives_longer_than_its_deadline(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair, deadline_s=0.3) as engine:
        for worker in pair:
            worker.outcomes = [SILENCE]
        began_s = time.monotonic()
        with pytest.raises(EngineUnavailable, match="within 0.3 s"):
            await engine.score(step())
        assert time.monotonic() - began_s < 5
        await until(lambda: any(worker.aborted for worker in pair))


async def test_a_step_that_is_not_answered_in_time_is_ended_there_and_done_elsewhere(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair, step_timeout_s=0.3) as engine:
        await engine.score(step(0, shared=PREFERRED))
        preferred, other = in_order(pair)
        preferred.outcomes = [SILENCE]
        await engine.score(step(1, shared=PREFERRED))
        assert len(other.bodies) == 1
        await until(lambda: preferred.aborted == [preferred.rids[1]])


async def test_an_abort_that_nobody_asked_for_is_made_good(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, pair[0]) as engine:
        pair[0].outcomes = [SILENCE]
        task = asyncio.create_task(engine.score(step(1)))
        await until(lambda: bool(pair[0].open))
        for ended in list(pair[0].open.values()):
            ended.get_loop().call_soon_threadsafe(ended.set_result, None)
        assert (await task).logprobs == pytest.approx(hashed_logprobs(step(1)))


async def test_a_dead_worker_loses_no_step_and_comes_back(tmp_path: Path) -> None:
    workers = FakeWorker(token_s=0.002), FakeWorker(token_s=0.002)
    with running(*workers):
        async with started(tmp_path, *workers) as engine:
            steps = [step(number, length=50) for number in range(40)]
            stream = asyncio.create_task(score_all(engine, steps))
            await until(lambda: all(len(worker.open) > 2 for worker in workers))
            workers[0].kill()
            evidence = await stream
            assert [each.step_id for each in evidence] == [each.step_id for each in steps]
            for asked, each in zip(steps, evidence, strict=True):
                assert each.logprobs == pytest.approx(hashed_logprobs(asked))
            assert engine.workers == {workers[0].url: "out", workers[1].url: "ready"}

            before = len(workers[0].bodies)
            workers[0].start()
            await until(lambda: engine.workers[workers[0].url] == "ready")
            await score_all(engine, steps)
            assert len(workers[0].bodies) > before


async def test_open_steps_leave_a_worker_that_falls_silent(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair, health_timeout_s=0.3) as engine:
        await engine.score(step(0, shared=PREFERRED))
        preferred, _ = in_order(pair)
        preferred.outcomes = [SILENCE] * 2
        tasks = [asyncio.create_task(engine.score(step(n, shared=PREFERRED))) for n in (1, 2)]
        await until(lambda: bool(preferred.open))
        preferred.silent = True
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
        assert engine.workers[preferred.url] == "out"
        preferred.silent = False
        await until(lambda: engine.workers[preferred.url] == "ready")


async def test_a_draining_worker_finishes_what_it_has(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair) as engine:
        await engine.score(step(0, shared=PREFERRED))
        preferred, other = in_order(pair)
        preferred.outcomes = [SILENCE]
        task = asyncio.create_task(engine.score(step(1, shared=PREFERRED)))
        await until(lambda: bool(preferred.open))
        preferred.draining = True
        await until(lambda: engine.workers[preferred.url] == "out")
        await engine.score(step(2, shared=PREFERRED))
        assert (len(preferred.bodies), len(other.bodies)) == (2, 1)
        assert not task.done()
        assert preferred.aborted == []
        task.cancel()


@pytest.mark.parametrize("stamp", [None, wire.Stamp(__version__, ())], ids=["no-stamp", "without-hooks"])
async def test_a_worker_that_comes_back_without_our_hooks_stays_out(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker], stamp: wire.Stamp | None
) -> None:
    async with started(tmp_path, *pair) as engine:
        pair[0].kill()
        await until(lambda: engine.workers[pair[0].url] == "out")
        pair[0].stamp = stamp
        pair[0].start()
        await asyncio.sleep(0.5)
        assert engine.workers[pair[0].url] == "out"
        pair[0].stamp = pair[1].stamp
        await until(lambda: engine.workers[pair[0].url] == "ready")


async def test_an_answer_without_a_stamp_is_not_used(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair) as engine:
        await engine.score(step(0, shared=PREFERRED))
        preferred, other = in_order(pair)
        preferred.stamp = None
        evidence = await engine.score(step(1, shared=PREFERRED))
        assert evidence.hooks
        assert len(other.bodies) == 1
        await until(lambda: engine.workers[preferred.url] == "out")


async def test_a_short_break_of_all_workers_is_waited_out(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, pair[0], down_after_s=20.0) as engine:
        pair[0].kill()
        task = asyncio.create_task(engine.score(step(1)))
        await until(lambda: engine.workers[pair[0].url] == "out")
        pair[0].start()
        async with asyncio.timeout(10):
            await task
        assert engine.state is EngineState.READY


async def test_when_all_are_gone_open_steps_fail_and_the_engine_is_down(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair) as engine:
        for worker in pair:
            worker.outcomes = [SILENCE] * 8
        tasks = [asyncio.create_task(engine.score(step(number))) for number in range(8)]
        await until(lambda: sum(len(worker.open) for worker in pair) == 8)
        for worker in pair:
            worker.kill()
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await engine.wait_down()
        assert {type(outcome) for outcome in outcomes} == {EngineUnavailable}
        assert engine.state is EngineState.DOWN
        with pytest.raises(EngineUnavailable, match="all workers are gone"):
            await engine.score(step())


async def test_a_supervisor_brings_the_engine_back_with_its_workers(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    settings = EngineSettings.model_validate(
        {"kind": "sglang_remote", "remote": QUICK | {"urls": [worker.url for worker in pair]}}
    )
    checkpoint = write_config(tmp_path)
    engine = SupervisedEngine(lambda: create_engine(settings, checkpoint, MAX_PROMPT_TOKENS), backoff_s=0.05)
    await engine.start()
    try:
        for worker in pair:
            worker.kill()
        await until(lambda: engine.state is not EngineState.READY)
        for worker in pair:
            worker.start()
        await until(lambda: engine.state is EngineState.READY)
        await engine.score(step())
        assert engine.restarts >= 1
    finally:
        await engine.close()
