"""The supervisor: an engine that comes back, or says why it does not."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from eti_rank.engine.protocol import Engine, EngineState, Labels, ScoringStep
from eti_rank.engine.scripted import Scripted
from eti_rank.engine.supervisor import SupervisedEngine
from eti_rank.errors import (
    ConfigurationError,
    EngineUnavailable,
    EtiRankError,
    HookError,
    ProfileError,
    UnsupportedRequest,
)
from eti_rank.settings import EngineSettings

STEP = ScoringStep(step_id="s", token_ids=(1, 2, 3), readout=Labels((1,)))


class Failing(Scripted):
    """Its start raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__(EngineSettings(), "failing", 100)
        self._error = error

    async def start(self) -> None:
        await asyncio.sleep(0)
        raise self._error


class Workshop:
    """A factory that remembers its engines and plays a list of them before healthy ones."""

    def __init__(self, *first: Engine, token_s: float = 0.0, start_s: float = 0.0) -> None:
        self.made: list[Engine] = []
        self._first = list(first)
        self._token_s, self._start_s = token_s, start_s

    def __call__(self) -> Engine:
        healthy = Scripted(EngineSettings(), "m", 100, token_s=self._token_s, start_s=self._start_s)
        self.made.append(self._first.pop(0) if self._first else healthy)
        return self.made[-1]


@pytest_asyncio.fixture
async def supervise() -> AsyncIterator[Callable[..., SupervisedEngine]]:
    """Makes supervised engines; afterwards each closes, and its engines with it, leaving no task."""
    made: list[tuple[SupervisedEngine, Workshop]] = []

    def make(workshop: Workshop, **options: object) -> SupervisedEngine:
        engine = SupervisedEngine(workshop, **({"backoff_s": 0.0} | options))
        made.append((engine, workshop))
        return engine

    yield make
    for supervised, workshop in made:
        await asyncio.wait_for(supervised.close(), 1.0)
        assert supervised.state is EngineState.CLOSED
        assert all(engine.state is EngineState.CLOSED for engine in workshop.made)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def reach(engine: SupervisedEngine, state: EngineState) -> None:
    async with asyncio.timeout(1.0):
        while engine.state is not state:
            await asyncio.sleep(0.001)


async def test_launch_returns_at_once_and_the_engine_becomes_ready(supervise) -> None:
    engine = supervise(Workshop(start_s=0.01))
    assert engine.state is EngineState.NEW
    engine.launch()
    engine.launch()
    await asyncio.sleep(0)
    assert engine.state is EngineState.STARTING
    with pytest.raises(EngineUnavailable, match="is starting"):
        await engine.score(STEP)
    await reach(engine, EngineState.READY)
    assert (await engine.score(STEP)).prompt_tokens == 3
    assert engine.restarts == 0
    assert engine.last_error is None


async def test_a_dead_engine_is_replaced(supervise) -> None:
    workshop = Workshop(token_s=0.05)
    engine = supervise(workshop)
    await engine.start()
    open_step = asyncio.create_task(engine.score(STEP))
    await asyncio.sleep(0.01)
    workshop.made[0].kill()
    assert engine.state is EngineState.DOWN
    with pytest.raises(EngineUnavailable):
        await engine.score(STEP)
    with pytest.raises(EngineUnavailable):
        await open_step
    await reach(engine, EngineState.READY)
    assert (await engine.score(STEP)).prompt_tokens == 3
    assert engine.restarts == 1
    assert isinstance(engine.last_error, EngineUnavailable)
    assert workshop.made[0].state is EngineState.CLOSED


async def test_while_it_waits_for_a_restart_steps_fail_with_the_reason(supervise) -> None:
    workshop = Workshop()
    engine = supervise(workshop, backoff_s=60.0)
    await engine.start()
    workshop.made[0].kill()
    await asyncio.wait_for(engine.wait_down(), 1.0)
    with pytest.raises(EngineUnavailable, match="will be restarted: the runtime died"):
        await engine.score(STEP)
    assert engine.description.kind == "scripted"


async def test_failed_starts_are_tried_again_and_counted(supervise) -> None:
    failures = [Failing(EngineUnavailable("out of memory")) for _ in range(3)]
    engine = supervise(Workshop(*failures))
    with pytest.raises(EngineUnavailable, match="out of memory"):
        await engine.start()
    await reach(engine, EngineState.READY)
    assert engine.restarts == 3


async def test_the_wait_doubles_while_starts_fail_and_has_a_ceiling(supervise, monkeypatch) -> None:
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        if seconds:
            waits.append(seconds)
        await real_sleep(0)

    monkeypatch.setattr("eti_rank.engine.supervisor.asyncio.sleep", record)
    workshop = Workshop(*(Failing(EngineUnavailable("no")) for _ in range(6)))
    engine = supervise(workshop, backoff_s=2.0)
    engine.launch()
    await reach(engine, EngineState.READY)
    assert [wait for wait in waits if wait >= 2.0] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    waits.clear()
    workshop.made[-1].kill()
    async with asyncio.timeout(1.0):
        while engine.restarts < 7:
            await real_sleep(0.001)
    assert [wait for wait in waits if wait >= 2.0] == [2.0]


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("no such device"), HookError("calc_priority moved"), UnsupportedRequest("no labels")],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_that_would_come_back_is_not_retried(supervise, error: EtiRankError) -> None:
    workshop = Workshop(Failing(error))
    engine = supervise(workshop)
    with pytest.raises(type(error), match=str(error)):
        await engine.start()
    await asyncio.sleep(0.01)
    assert engine.state is EngineState.DOWN
    assert engine.last_error is error
    assert "not restarted" in engine.reason and str(error) in engine.reason
    assert len(workshop.made) == 1
    with pytest.raises(EngineUnavailable, match=str(error)):
        await engine.score(STEP)


async def test_a_factory_that_refuses_keeps_the_engine_down(supervise) -> None:
    def refuse() -> Engine:
        raise ConfigurationError("sglang is not installed")

    engine = SupervisedEngine(refuse, backoff_s=0.0)
    with pytest.raises(ConfigurationError, match="not installed"):
        await engine.start()
    await engine.close()


async def test_it_is_not_ready_before_it_is_verified(supervise) -> None:
    gate = asyncio.Event()
    seen: list[EngineState] = []

    async def verify(inner: Engine) -> None:
        seen.append(inner.state)
        await gate.wait()

    engine = supervise(Workshop(), verify=verify)
    engine.launch()
    await asyncio.sleep(0.01)
    assert seen == [EngineState.READY]
    assert engine.state is EngineState.STARTING
    gate.set()
    await reach(engine, EngineState.READY)


async def test_a_failed_verification_keeps_it_down(supervise) -> None:
    async def verify(_inner: Engine) -> None:
        raise ProfileError("golden scores differ")

    engine = supervise(Workshop(), verify=verify)
    with pytest.raises(ProfileError):
        await engine.start()
    assert engine.state is EngineState.DOWN


async def test_an_unforeseen_error_is_logged_and_shown(supervise, caplog) -> None:
    engine = supervise(Workshop(Failing(RuntimeError("secret detail"))))
    with pytest.raises(EngineUnavailable):
        await engine.start()
    await asyncio.sleep(0.01)
    assert engine.state is EngineState.DOWN
    assert "RuntimeError" in engine.reason
    assert "secret detail" not in engine.reason
    assert "secret detail" in caplog.text


async def test_close_while_it_starts(supervise) -> None:
    engine = supervise(Workshop(start_s=30.0))
    waiting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.01)
    await engine.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await waiting


async def test_close_before_launch_and_launch_after_close(supervise) -> None:
    engine = supervise(Workshop())
    await engine.close()
    engine.launch()
    await asyncio.sleep(0)
    assert engine.state is EngineState.CLOSED
    with pytest.raises(EngineUnavailable, match="closed"):
        await engine.start()


async def test_close_ends_a_wait_for_a_restart(supervise) -> None:
    engine = supervise(Workshop(Failing(EngineUnavailable("no"))), backoff_s=60.0)
    with pytest.raises(EngineUnavailable):
        await engine.start()
    await engine.close()
    await engine.wait_down()
