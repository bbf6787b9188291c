"""Keeps an engine running: starts it in the background and starts a new one after each death."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from typing_extensions import override

from eti_rank.engine.protocol import (
    Engine,
    EngineDescription,
    EngineState,
    Evidence,
    Generated,
    GenerationStep,
    ScoringStep,
)
from eti_rank.errors import EngineUnavailable, EtiRankError

MAX_BACKOFF_S = 30.0

log = logging.getLogger(__name__)


async def _accept(_engine: Engine) -> None:
    """The verification that asks nothing."""


class SupervisedEngine(Engine):
    """An engine that outlives its runtime.

    A start that fails with EngineUnavailable is tried again, later each time. Any other error of
    the tree (wrong settings, missing hooks, a model that fails its golden scores) would come back,
    so the engine stays DOWN with that error as `last_error`.

    Args:
        factory: makes a new engine, not started.
        backoff_s: wait before the first restart; doubles up to MAX_BACKOFF_S while starts fail.
        verify: run on each started engine before it counts as ready; raises to refuse it.
    """

    def __init__(
        self,
        factory: Callable[[], Engine],
        *,
        backoff_s: float,
        verify: Callable[[Engine], Awaitable[None]] = _accept,
    ) -> None:
        self._factory = factory
        self._backoff_s = backoff_s
        self._verify = verify
        self._state = EngineState.NEW
        self._engine: Engine | None = None
        self._description: EngineDescription | None = None
        self._task: asyncio.Task[None] | None = None
        self._decided = asyncio.Event()  # the first attempt has succeeded or failed
        self._fallen = asyncio.Event()  # DOWN or CLOSED
        self._starts = 0
        self._last_error: EtiRankError | None = None

    @property
    @override
    def state(self) -> EngineState:
        """Where the engine is in its life; DOWN as soon as the runtime is, before it is replaced."""
        if self._state is EngineState.READY and self._engine is not None:
            return self._engine.state
        return self._state

    @property
    @override
    def description(self) -> EngineDescription:
        if self._description is None:
            raise EngineUnavailable(self.reason)
        return self._description

    @property
    def restarts(self) -> int:
        """Starts begun after a crash or a failed start."""
        return max(0, self._starts - 1)

    @property
    def last_error(self) -> EtiRankError | None:
        """Why the engine last failed; kept after it has recovered."""
        return self._last_error

    @property
    def reason(self) -> str:
        """Why no step is taken, for people; says that it is ready when it is."""
        cause = f": {self._last_error}" if self._last_error else ""
        match self.state:
            case EngineState.NEW:
                return "the engine has not been started"
            case EngineState.STARTING:
                again = " again after a failure" if cause else ""
                return f"the engine is starting{again}{cause}"
            case EngineState.DOWN if self._task is not None and self._task.done():
                return f"the engine is down and is not restarted, because that would not help{cause}"
            case EngineState.DOWN:
                return f"the engine is down and will be restarted{cause}"
            case EngineState.CLOSED:
                return "the engine is closed"
            case _:
                return "the engine is ready"

    def launch(self) -> None:
        """Start in the background and return at once; without effect after the first call."""
        if self._task is None and self._state is EngineState.NEW:
            self._task = asyncio.create_task(self._supervise(), name="eti-rank engine supervisor")
            self._task.add_done_callback(self._on_task_done)

    @override
    async def start(self) -> None:
        """Launch, and wait for the first attempt.

        Raises:
            EtiRankError: the first attempt failed so; where a retry can help, retries go on until `close`.
        """
        self.launch()
        await self._decided.wait()
        if self.state is not EngineState.READY:
            raise self._last_error or EngineUnavailable(self.reason)

    @override
    async def close(self) -> None:
        """Stop the supervisor and its engine; may be called twice, in every state."""
        self._become(EngineState.CLOSED)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    @override
    async def score(self, step: ScoringStep) -> Evidence:
        """Run one step on the engine of this moment; raises at once while there is none."""
        if self._engine is None:
            raise EngineUnavailable(self.reason)
        return await self._engine.score(step)

    @override
    async def generate(self, step: GenerationStep) -> AsyncGenerator[Generated, None]:
        """Run one generation on the engine of this moment; raises at once while there is none."""
        if self._engine is None:
            raise EngineUnavailable(self.reason)
        async with aclosing(self._engine.generate(step)) as pieces:
            async for piece in pieces:
                yield piece

    @override
    async def wait_down(self) -> None:
        await self._fallen.wait()

    async def _supervise(self) -> None:
        backoff_s = self._backoff_s
        while True:
            was_ready = await self._live_once()
            if not isinstance(self._last_error, EngineUnavailable):
                return
            if was_ready:
                backoff_s = self._backoff_s
            log.warning("engine down (%s); next start in %.1f s", self._last_error, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _live_once(self) -> bool:
        """One engine from its start to its end; sets `last_error`; returns whether it was ready."""
        self._starts += 1
        self._become(EngineState.STARTING)
        engine: Engine | None = None
        try:
            engine = self._factory()
            await engine.start()
            await self._verify(engine)
            self._engine, self._description = engine, engine.description
            self._become(EngineState.READY)
            await engine.wait_down()
            self._last_error = EngineUnavailable("the runtime died")
        except EtiRankError as error:
            self._last_error = error
        finally:
            was_ready, self._engine = self._engine is not None, None
            self._become(EngineState.DOWN)
            if engine is not None:
                await engine.close()
        return was_ready

    def _become(self, state: EngineState) -> None:
        if self._state is EngineState.CLOSED:
            return
        self._state = state
        if state in {EngineState.DOWN, EngineState.CLOSED}:
            self._fallen.set()
        else:
            self._fallen.clear()
        if state is not EngineState.STARTING:
            self._decided.set()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Keeps an error outside our tree from vanishing with the task."""
        if task.cancelled():
            return
        if unforeseen := task.exception():
            log.error("the engine's supervisor failed", exc_info=unforeseen)
            self._last_error = EngineUnavailable(f"unforeseen {type(unforeseen).__name__} in the runtime")
        else:
            log.error("engine down for good: %s", self._last_error)
