"""One URL of a router, and the workers behind it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from eti_rank.engine.protocol import EngineState
from eti_rank.errors import ConfigurationError, EngineUnavailable, HookError
from tests.fake_worker import PLACES, SILENCE, FakeWorker, running
from tests.unit.engine.sglang_remote.conftest import engine_on, started, step
from tests.unit.engine.sglang_remote.test_scoring import until


@pytest.fixture
def routed() -> Iterator[tuple[FakeWorker, FakeWorker, FakeWorker]]:
    """A router, which answers steps itself, and two workers of its own."""
    router, one, other = FakeWorker(), FakeWorker(), FakeWorker()
    router.behind = [one, other]
    with running(router, one, other):
        yield router, one, other


Routed = tuple[FakeWorker, FakeWorker, FakeWorker]


async def test_steps_go_to_the_router_and_its_workers_are_counted(tmp_path: Path, routed: Routed) -> None:
    router, one, other = routed
    async with started(tmp_path, router) as engine:
        assert engine.description.max_running_requests == 2 * PLACES
        await engine.score(step())
        assert len(router.bodies) == 1
        assert one.bodies == other.bodies == []


async def test_each_worker_behind_it_must_be_fit(tmp_path: Path, routed: Routed) -> None:
    router, _, other = routed
    other.stamp = None
    with pytest.raises(HookError, match=f"worker {router.url}: worker {other.url} behind it: .*stamp"):
        await engine_on(tmp_path, router).start()
    other.stamp, other.offset_nats = router.stamp, 0.01
    with pytest.raises(ConfigurationError, match="other weights"):
        await engine_on(tmp_path, router).start()
    other.offset_nats, other.info["max_req_input_len"] = 0.0, 100
    with pytest.raises(ConfigurationError, match=f"worker {other.url} behind it: .*99 tokens"):
        await engine_on(tmp_path, router).start()


async def test_a_router_must_pass_the_stamp_on(tmp_path: Path, routed: Routed) -> None:
    routed[0].stamp = None
    with pytest.raises(HookError, match="without a stamp"):
        await engine_on(tmp_path, routed[0]).start()


async def test_dead_workers_are_the_routers_to_avoid_until_none_is_left(
    tmp_path: Path, routed: Routed
) -> None:
    router, one, other = routed
    one.kill()
    async with started(tmp_path, router) as engine:
        assert engine.description.max_running_requests == PLACES
        other.kill()
        async with asyncio.timeout(10):
            await engine.wait_down()
        assert engine.state is EngineState.DOWN
    with pytest.raises(EngineUnavailable, match="of the 2 workers .* none answers"):
        await engine_on(tmp_path, router).start()


async def test_a_worker_that_joins_behind_it_must_be_fit_too(tmp_path: Path, routed: Routed) -> None:
    router, one, other = routed
    router.behind = [one]
    other.stamp = None
    async with started(tmp_path, router, down_after_s=20.0) as engine:
        router.behind = [one, other]
        await until(lambda: engine.workers[router.url] == "out")
        other.stamp = one.stamp
        await until(lambda: engine.workers[router.url] == "ready")
        await engine.score(step())


async def test_cancelling_reaches_all_workers_behind_it(tmp_path: Path, routed: Routed) -> None:
    router, one, other = routed
    async with started(tmp_path, router) as engine:
        router.outcomes = [SILENCE]
        task = asyncio.create_task(engine.score(step()))
        await until(lambda: bool(router.open))
        task.cancel()
        await until(lambda: one.aborted == other.aborted == router.rids)
