"""Steps on workers that are well: what is sent, where it goes, what comes back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from eti_rank.engine import readout
from eti_rank.engine.protocol import Likelihood, score_all
from eti_rank.engine.scripted import hashed_logprobs
from eti_rank.errors import EngineUnavailable, UnsupportedRequest
from tests.fake_worker import HOOKS, PLACES, SILENCE, FakeWorker, running
from tests.unit.engine.sglang_remote.conftest import MAX_PROMPT_TOKENS, engine_on, started, step


@pytest.fixture
def pair() -> Iterator[tuple[FakeWorker, FakeWorker]]:
    workers = (FakeWorker(), FakeWorker())
    with running(*workers):
        yield workers


async def until(condition: object, within_s: float = 10.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_evidence_is_what_the_worker_read_out(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair) as engine:
        for asked in (step(1), step(2, readout=Likelihood(3))):
            evidence = await engine.score(asked)
            assert evidence.logprobs == pytest.approx(hashed_logprobs(asked), abs=1e-12)
            assert evidence.hooks == HOOKS
            assert evidence.prompt_tokens == 20


async def test_body_is_what_the_engine_in_this_process_asks(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, pair[0]) as engine:
        for asked in (step(1, shared=4), step(2, readout=Likelihood(3))):
            await engine.score(asked)
            assert pair[0].bodies[-1] == readout.request(asked) | {"rid": pair[0].rids[-1]}


async def test_request_ids_are_never_prefixes_of_each_other(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, pair[0]) as one, started(tmp_path, pair[0]) as other:
        await score_all(one, [step(n) for n in range(20)])
        await score_all(other, [step(n) for n in range(20)])
    rids = pair[0].rids
    assert len(set(rids)) == 40
    assert {len(rid) for rid in rids} == {32}


async def test_a_shared_prefix_stays_on_one_worker_while_that_is_idle(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    async with started(tmp_path, *pair) as engine:
        for number in range(10):
            await engine.score(step(number, shared=4))
    assert sorted(len(worker.bodies) for worker in pair) == [0, 10]


async def test_a_burst_of_one_prefix_is_shared_within_the_bound(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    for worker in pair:
        worker.outcomes = [SILENCE] * 40
    async with started(tmp_path, *pair) as engine:
        tasks = [asyncio.create_task(engine.score(step(number, shared=4))) for number in range(40)]
        await until(lambda: sum(len(worker.bodies) for worker in pair) == 40)
        assert sorted(len(worker.bodies) for worker in pair) == [15, 25]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_steps_that_share_nothing_go_where_the_fewest_are_open(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    for worker in pair:
        worker.outcomes = [SILENCE] * 40
    async with started(tmp_path, *pair) as engine:
        tasks = [asyncio.create_task(engine.score(step(number))) for number in range(40)]
        await until(lambda: sum(len(worker.bodies) for worker in pair) == 40)
        assert [len(worker.bodies) for worker in pair] == [20, 20]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_description_sums_the_workers(tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]) -> None:
    async with started(tmp_path, *pair) as engine:
        assert engine.description.kind == "sglang_remote"
        assert engine.description.max_running_requests == 2 * PLACES
        assert engine.description.max_prompt_tokens == MAX_PROMPT_TOKENS


async def test_cancelling_reaches_the_worker_and_frees_the_place(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    worker = pair[0]
    async with started(tmp_path, worker) as engine:
        worker.outcomes = [SILENCE] * 3
        tasks = [asyncio.create_task(engine.score(step(n))) for n in range(3)]
        await until(lambda: len(worker.open) == 3)
        asked = {tuple(body["input_ids"]): body["rid"] for body in worker.bodies}
        victim = asked[step(1).token_ids]  # in whatever order they arrived
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        await until(lambda: worker.aborted == [victim])
        await until(lambda: len(worker.open) == 2)
        assert not tasks[0].done()
        assert not tasks[2].done()


async def test_closing_ends_open_steps_on_the_worker_too(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    worker = pair[0]
    async with started(tmp_path, worker) as engine:
        worker.outcomes = [SILENCE] * 8
        tasks = [asyncio.create_task(engine.score(step(n))) for n in range(8)]
        await until(lambda: len(worker.open) == 8)
        await engine.close()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {EngineUnavailable}
    assert sorted(worker.aborted) == sorted(worker.rids)


async def test_a_flood_of_cancellations_is_bounded(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    worker = pair[0]
    async with started(tmp_path, worker, connect_timeout_s=0.5, health_timeout_s=20.0) as engine:
        worker.outcomes = [SILENCE] * 200
        tasks = [asyncio.create_task(engine.score(step(n))) for n in range(200)]
        await until(lambda: len(worker.open) == 200)
        worker.silent = True  # so that no abort returns and makes room
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert len(engine._aborts) <= 64
        worker.silent = False


async def test_connections_are_bounded_and_checks_do_not_wait_for_steps(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    worker = pair[0]
    async with started(tmp_path, worker, max_connections=8, health_timeout_s=2.0) as engine:
        worker.outcomes = [SILENCE] * 8
        tasks = [asyncio.create_task(engine.score(step(n))) for n in range(12)]
        await until(lambda: len(worker.open) == 8)
        await asyncio.sleep(0.3)
        assert len(worker.bodies) == 8
        assert engine.workers == {worker.url: "ready"}
        tasks[0].cancel()  # the abort goes through, and the other four follow on its connection
        await asyncio.gather(*tasks[8:])
        assert worker.aborted == [worker.rids[0]]
        for task in tasks:
            task.cancel()


async def test_a_refused_step_is_not_tried_again(tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]) -> None:
    async with started(tmp_path, *pair) as engine:
        for worker in pair:
            worker.outcomes = [400]
        with pytest.raises(UnsupportedRequest, match="told to say 400"):
            await engine.score(step())
        assert sum(len(worker.bodies) for worker in pair) == 1
        assert set(engine.workers.values()) == {"ready"}


async def test_flush_reaches_every_worker(tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]) -> None:
    async with started(tmp_path, *pair) as engine:
        await engine.flush_cache()
        assert [worker.flushed for worker in pair] == [1, 1]


async def test_before_start_nothing_is_scored(tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]) -> None:
    engine = engine_on(tmp_path, *pair)
    with pytest.raises(EngineUnavailable, match="new"):
        await engine.score(step())
    await engine.close()
    with pytest.raises(EngineUnavailable, match="starts once"):
        await engine.start()
