"""`SglangLocal`: start, score, notice a death, close."""

import asyncio
import atexit
import importlib
import itertools
import logging
import multiprocessing.connection
import signal
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from eti_rank.engine import generation, handshake, readout
from eti_rank.engine.protocol import (
    Capability,
    Engine,
    EngineDescription,
    EngineState,
    Evidence,
    Generated,
    GenerationStep,
    ScoringStep,
)
from eti_rank.engine.sglang_local import arguments, forkserver, lean, plugin
from eti_rank.engine.sglang_local.host import LoopThread
from eti_rank.errors import ConfigurationError, EngineUnavailable, UnsupportedRequest
from eti_rank.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from multiprocessing.process import BaseProcess

    from eti_rank.engine.sglang_local.launch import LaunchedEngine

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_S = 5.0
"""The scheduler retires a finished step a moment after its answer."""


class SglangLocal(Engine):
    """SGLang's engine in this process, with our plugin in its scheduler process.

    Args:
        settings: what to start.
        checkpoint: folder of the model.
        max_prompt_tokens: longest prompt that will be asked for.
    """

    def __init__(self, settings: EngineSettings, checkpoint: str, max_prompt_tokens: int) -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._max_prompt_tokens = max_prompt_tokens
        self._hooks = handshake.wanted_hooks(settings)
        self._device = arguments.device_of(settings)
        self._state = EngineState.NEW
        self._host: LoopThread | None = None
        self._engine: LaunchedEngine | None = None
        self._release: Callable[[LaunchedEngine], None]
        self._processes: list[BaseProcess] = []
        self._open: dict[str, asyncio.Task[Any]] = {}
        self._request_numbers = itertools.count()
        self._down = asyncio.Event()
        self._description: EngineDescription | None = None

    @property
    @override
    def state(self) -> EngineState:
        return self._state

    @property
    @override
    def description(self) -> EngineDescription:
        if self._description is None:
            raise EngineUnavailable("the engine has not been ready yet")
        return self._description

    @property
    def process_ids(self) -> list[int]:
        """Of the scheduler and the detokenizer."""
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def unfinished_requests(self) -> int:
        """Requests that SGLang still keeps a state for, aborted ones included."""
        return len(self._engine.tokenizer_manager.rid_to_state) if self._engine else 0

    @override
    async def start(self) -> None:
        if self._state is not EngineState.NEW:
            raise EngineUnavailable(f"an engine starts once; this one is {self._state}")
        self._state = EngineState.STARTING
        clock = _PhaseClock()
        variables = arguments.environment(self._settings, self._device)
        ignore_child_signals()
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                if self._device == "cpu":
                    forkserver.start(variables)
                self._host = LoopThread("sglang")
                await self._host.call(partial(self._launch, variables, clock))
                self._watch()
                hooks = await self._shake_hands()
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                limit = self._settings.start_timeout_s
                raise EngineUnavailable(f"SGLang was not ready after {limit:g} s") from None
            raise
        clock.lap("handshake")
        self._description = self._describe(clock.laps, hooks)
        self._state = EngineState.READY

    @override
    async def score(self, step: ScoringStep) -> Evidence:
        if self._state is not EngineState.READY:
            raise EngineUnavailable(f"the engine is {self._state}")
        readout.check(
            step,
            vocabulary_size=self._vocabulary_size(),
            max_prompt_tokens=self.description.max_prompt_tokens,
        )
        answer = await self._submit(step)
        return readout.evidence(step, answer["meta_info"])

    @override
    async def generate(self, step: GenerationStep) -> AsyncGenerator[Generated, None]:
        if self._state is not EngineState.READY:
            raise EngineUnavailable(f"the engine is {self._state}")
        if Capability.GENERATE not in self.description.capabilities:
            raise UnsupportedRequest("this engine was started without engine.generation, and only scores")
        if step.control is not None and self._settings.speculative.algorithm != "off":
            raise UnsupportedRequest(
                "drafted tokens are verified past the hooks: a control needs engine.speculative.algorithm off"
            )
        generation.check(
            step,
            vocabulary_size=self._vocabulary_size(),
            max_prompt_tokens=self.description.max_prompt_tokens,
            hooks=self.description.hooks,
        )
        pieces: asyncio.Queue[Generated | None] = asyncio.Queue()
        with self._call(partial(self._pump, step, asyncio.get_running_loop(), pieces)) as task:
            task.add_done_callback(lambda _: pieces.put_nowait(None))
            while (piece := await pieces.get()) is not None:
                yield piece
            await self._outcome(task)

    @override
    async def wait_down(self) -> None:
        await self._down.wait()

    async def flush_cache(self) -> None:
        """Empty the radix cache; for studies that need a cold one.

        Raises:
            EngineUnavailable: SGLang refuses, as it does while steps are open.
        """
        assert self._host is not None
        assert self._engine is not None
        flush = self._engine.tokenizer_manager.flush_cache(timeout_s=FLUSH_TIMEOUT_S)
        if not (await self._host.await_(flush)).success:
            raise EngineUnavailable("SGLang does not empty its cache while steps are open")

    @override
    async def close(self) -> None:
        if self._state is EngineState.CLOSED:
            return
        self._state = EngineState.CLOSED
        await self._tear_down()

    def _launch(self, variables: dict[str, str], clock: "_PhaseClock") -> None:
        """Runs in the host thread: import SGLang, check our targets in it, start its processes."""
        with forkserver.environment(variables):
            launch = _import_launch()
            clock.lap("import")
            if self._hooks is not None:
                plugin.check((*self._hooks, "launch"))
            try:
                self._release = launch.release
                self._engine, self._processes = launch.launch(
                    arguments.server_arguments(
                        self._settings,
                        checkpoint=self._checkpoint,
                        device=self._device,
                        max_prompt_tokens=self._max_prompt_tokens,
                    ),
                    forked=self._device == "cpu",
                    threads=arguments.threads_of(self._settings, self._device),
                )
            except (RuntimeError, ValueError, OSError, AssertionError) as error:
                raise EngineUnavailable(f"SGLang did not start: {error}") from error
            clock.lap("launch")

    async def _shake_hands(self) -> tuple[str, ...]:
        answer = await self._submit(handshake.PROBE)
        return handshake.prove(answer["meta_info"], hooks=self._hooks)

    async def _submit(self, step: ScoringStep) -> dict[str, Any]:
        """One scoring request to SGLang, failed at once when its processes die."""
        assert self._engine is not None
        with self._call(partial(self._engine.async_generate, **readout.request(step))) as task:
            answer: dict[str, Any] = await self._outcome(task)
            return answer

    async def _pump(
        self,
        step: GenerationStep,
        caller: asyncio.AbstractEventLoop,
        pieces: "asyncio.Queue[Generated | None]",
        rid: str,
    ) -> None:
        """Runs in the host thread: pass on what SGLang generates; closing the stream aborts the request.

        SGLang goes on writing to the answers that it has given out, so they are read here.
        """
        assert self._engine is not None
        cutter = generation.Pieces(step)
        async with aclosing(
            await self._engine.async_generate(rid=rid, **generation.request(step))
        ) as answers:
            async for answer in answers:
                caller.call_soon_threadsafe(pieces.put_nowait, cutter.take(answer))

    @contextmanager
    def _call(self, request: "Callable[..., Coroutine[Any, Any, Any]]") -> "Iterator[asyncio.Task[Any]]":
        """Run a coroutine function of SGLang's, given a request id, for as long as the context is open."""
        assert self._host is not None
        # SGLang aborts by prefix of the id: ids of one length are never prefixes of each other.
        rid = f"{next(self._request_numbers):016x}"
        task = asyncio.ensure_future(self._host.await_(request(rid=rid)))
        self._open[rid] = task
        try:
            yield task
        finally:
            task.cancel()
            self._open.pop(rid, None)

    async def _outcome(self, task: "asyncio.Task[Any]") -> Any:
        """What SGLang answered.

        Raises:
            EngineUnavailable: its processes ended first.
            UnsupportedRequest: it refuses.
        """
        try:
            return await task
        except asyncio.CancelledError:
            if self._state in {EngineState.DOWN, EngineState.CLOSED} and not _being_cancelled():
                raise EngineUnavailable("SGLang's processes ended while the step was open") from None
            raise
        except ValueError as error:
            raise UnsupportedRequest(f"SGLang refused the step: {error}") from error

    def _vocabulary_size(self) -> int:
        assert self._engine is not None
        return int(self._engine.tokenizer_manager.model_config.vocab_size)

    def _watch(self) -> None:
        """Notice the death of a process within milliseconds, in a thread that waits for it."""
        loop = asyncio.get_running_loop()
        sentinels = [process.sentinel for process in self._processes]

        def wait() -> None:
            multiprocessing.connection.wait(sentinels)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._on_death)

        threading.Thread(target=wait, name="sglang-watch", daemon=True).start()

    def _on_death(self) -> None:
        if self._state is EngineState.CLOSED:
            return
        dead = ", ".join(f"{p.name} (exit {p.exitcode})" for p in self._processes if not p.is_alive())
        logger.error("SGLang died: %s", dead)
        self._state = EngineState.DOWN
        self._fail_open()
        self._down.set()

    def _fail_open(self) -> None:
        for task in list(self._open.values()):
            task.cancel()

    async def _tear_down(self) -> None:
        self._fail_open()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            await asyncio.to_thread(process.join, 10)
        if self._host is not None:
            await self._host.cancel_all()
            if self._engine is not None:
                atexit.unregister(self._engine.shutdown)
                await self._host.call(partial(self._release, self._engine))
            await asyncio.to_thread(self._host.stop)
        self._engine = None
        self._down.set()

    def _describe(self, laps: dict[str, float], hooks: tuple[str, ...]) -> EngineDescription:
        assert self._engine is not None
        config = self._engine.tokenizer_manager.model_config
        dtype = str(config.dtype).removeprefix("torch.")
        return EngineDescription(
            kind="sglang_local",
            model=self._checkpoint,
            device=self._device,
            dtype=dtype,
            capabilities=frozenset(
                each for each in Capability if each is not Capability.GENERATE or self._settings.generation
            ),
            # One place stays free for the token that a label step samples.
            max_prompt_tokens=min(int(self._engine.tokenizer_manager.max_req_input_len), config.context_len)
            - 1,
            max_running_requests=self._settings.max_running_requests,
            noise_floor_nats=readout.noise_floor_nats(dtype),
            startup_s=laps,
            hooks=hooks,
        )


def _import_launch() -> Any:
    """Import SGLang, and what launches it.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        with lean.imports():
            return importlib.import_module("eti_rank.engine.sglang_local.launch")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sglang":
            raise
        raise ConfigurationError(
            "engine.kind is sglang_local, and SGLang is not installed here; `make setup` installs it"
        ) from None


class _PhaseClock:
    """Seconds of consecutive phases."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 3)
        self._last = now


def ignore_child_signals() -> None:
    """Keep SIGQUIT, by which SGLang's processes report their failure, from ending this process.

    Their death is noticed by its sentinel. Only the main thread can set this; an engine that starts
    elsewhere leaves SIGQUIT as it is.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGQUIT, lambda *_: logger.error("a process of SGLang reported its failure"))


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
