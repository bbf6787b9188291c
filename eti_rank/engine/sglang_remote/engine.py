"""`SglangRemote`: start, score on whichever worker can, notice that all are gone, close."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

from typing_extensions import override

from eti_rank.engine import generation, handshake, readout, wire
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
from eti_rank.engine.sglang_remote.admission import Admission, WorkerFacts, read_checkpoint_config
from eti_rank.engine.sglang_remote.backoff import pauses
from eti_rank.engine.sglang_remote.client import WorkerClient
from eti_rank.engine.sglang_remote.faults import WorkerBusy, WorkerFault, WorkerLost
from eti_rank.engine.sglang_remote.fleet import Fleet, Member, MemberState
from eti_rank.errors import (
    ConfigurationError,
    EngineError,
    EngineUnavailable,
    EtiRankError,
    HookError,
    UnsupportedRequest,
)
from eti_rank.settings import EngineSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
StepT = TypeVar("StepT", ScoringStep, GenerationStep)
MAX_OPEN_ABORTS: Final = 64
"""More are not sent: SGLang looks for closed connections itself every few seconds."""
FLUSH_TIMEOUT_S: Final = 5.0
"""The scheduler retires a finished step a moment after its answer."""


class SglangRemote(Engine):
    """SGLang servers over HTTP, each with our plugin in its scheduler process.

    Once all workers are gone the engine is DOWN for good, as every engine is whose runtime died;
    whoever supervises it starts another.

    Args:
        settings: `remote` names the workers; `plugin` and `start_timeout_s` are honoured.
        checkpoint: folder or hub name of the model that prompts are rendered for.
        max_prompt_tokens: longest prompt that will be asked for; each worker must take it.

    Raises:
        ConfigurationError: no worker is named, one twice, or one not by a URL.
    """

    def __init__(self, settings: EngineSettings, checkpoint: str, max_prompt_tokens: int) -> None:
        self._settings = settings
        self._remote = settings.remote
        self._checkpoint = checkpoint
        self._max_prompt_tokens = max_prompt_tokens
        clients = [WorkerClient(url, self._remote) for url in self._remote.urls]
        if not clients or len({client.url for client in clients}) < len(clients):
            raise ConfigurationError("engine.remote.urls names at least one worker, and each once")
        members = [Member(client) for client in clients]
        self._fleet = Fleet(members, self._examine, self._on_lost, self._remote)
        self._state = EngineState.NEW
        self._ended = asyncio.Event()
        self._open: set[asyncio.Task[Any]] = set()
        self._requests: set[asyncio.Task[Any]] = set()
        self._aborts: set[asyncio.Task[None]] = set()
        # Unlike those of other engines on a worker, and all of one length: SGLang aborts by prefix.
        self._rids = (f"{secrets.token_hex(8)}{number:016x}" for number in itertools.count())
        self._admission: Admission
        self._vocabulary_size = 0
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
    def workers(self) -> dict[str, MemberState]:
        """Where each worker stands, by its URL."""
        return {member.url: member.state for member in self._fleet.members}

    @override
    async def start(self) -> None:
        if self._state is not EngineState.NEW:
            raise EngineUnavailable(f"an engine starts once; this one is {self._state}")
        self._state = EngineState.STARTING
        began_s = time.perf_counter()
        try:
            config = read_checkpoint_config(self._checkpoint)
            self._vocabulary_size = config.vocabulary_size
            self._admission = Admission(
                config,
                max_prompt_tokens=self._max_prompt_tokens,
                hooks=handshake.wanted_hooks(self._settings),
            )
            async with asyncio.timeout(self._settings.start_timeout_s):
                facts = await self._assemble()
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                limit = self._settings.start_timeout_s
                raise EngineUnavailable(f"the workers were not examined within {limit:g} s") from None
            raise
        self._description = self._describe(facts, round(time.perf_counter() - began_s, 3))
        self._state = EngineState.READY
        self._fleet.watch()

    @override
    async def score(self, step: ScoringStep) -> Evidence:
        self._refuse_unless_ready()
        readout.check(step, vocabulary_size=self._vocabulary_size, max_prompt_tokens=self._max_prompt_tokens)
        task = asyncio.create_task(self._run(step, self._attempt))
        self._open.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._open.discard(task)
        if task.cancelled():
            self._refuse_unless_ready()
        return task.result()

    @override
    async def generate(self, step: GenerationStep) -> AsyncGenerator[Generated, None]:
        self._refuse_unless_ready()
        if Capability.GENERATE not in self.description.capabilities:
            raise UnsupportedRequest("a worker was started without engine.generation, and only scores")
        generation.check(
            step,
            vocabulary_size=self._vocabulary_size,
            max_prompt_tokens=self._max_prompt_tokens,
            hooks=self.description.hooks,
        )
        pieces: asyncio.Queue[Generated | None] = asyncio.Queue()
        task = asyncio.create_task(self._run(step, partial(self._attempt_generation, pieces=pieces)))
        self._open.add(task)
        task.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
        finally:
            task.cancel()
            self._open.discard(task)
        if task.cancelled():
            self._refuse_unless_ready()
        task.result()

    @override
    async def wait_down(self) -> None:
        await self._ended.wait()

    async def flush_cache(self) -> None:
        """Empty the radix cache of each worker that is ready; for studies that need a cold one.

        Raises:
            EngineError: a worker refuses, as it does while steps are open.
        """
        for member in self._fleet.members:
            if member.state is MemberState.READY:
                await member.client.flush_cache(FLUSH_TIMEOUT_S)

    @override
    async def close(self) -> None:
        if self._state is EngineState.CLOSED:
            return
        self._end(EngineState.CLOSED)
        if ending := self._open | self._requests:
            await asyncio.wait(ending)
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=self._remote.connect_timeout_s)
        await self._fleet.close()

    async def _assemble(self) -> list[WorkerFacts]:
        """Examine all workers at once and admit those that are fit, in the order of the settings."""
        members = self._fleet.members
        found = await asyncio.gather(*map(self._ask, members), return_exceptions=True)
        facts: list[WorkerFacts] = []
        faults: dict[str, EtiRankError] = {}
        for member, result in zip(members, found, strict=True):
            try:
                if isinstance(result, BaseException):
                    raise result
                self._admission.admit(result)
            except EtiRankError as error:
                faults[member.url] = error
            else:
                facts.append(result)
                self._fleet.welcome(member)
        if faults and (self._remote.require_all or not facts):
            raise _start_error(faults)
        for url, fault in faults.items():
            logger.warning("starting without worker %s: %s", url, fault)
        return facts

    async def _ask(self, member: Member) -> WorkerFacts:
        return await self._admission.examine(
            member.client, self._rids, timeout_s=self._remote.health_timeout_s
        )

    async def _examine(self, member: Member) -> None:
        self._admission.admit(await self._ask(member))

    async def _run(self, step: StepT, attempt: Callable[[StepT, Member], Awaitable[T]]) -> T:
        """Attempt a step until a worker does it, within its deadline and number of attempts."""
        remote = self._remote
        fault: WorkerFault | None = None
        member: Member | None = None
        limit = f"{remote.max_attempts} attempts"
        try:
            async with asyncio.timeout(remote.deadline_s):
                for pause_s in pauses(remote.max_attempts, remote.backoff_s, remote.max_backoff_s):
                    await asyncio.sleep(pause_s)
                    member = await self._fleet.pick(step, avoid=member)
                    try:
                        return await attempt(step, member)
                    except WorkerFault as error:
                        fault = error
                        if not isinstance(error, WorkerBusy):
                            self._fleet.suspect(member, error)
        except TimeoutError:
            limit = f"{remote.deadline_s:g} s"
        because = f"; at last {fault}" if fault else ""
        raise EngineUnavailable(f"no worker did the step within {limit}{because}") from fault

    async def _attempt(self, step: ScoringStep, member: Member) -> Evidence:
        rid = next(self._rids)
        body = readout.request(step) | {"rid": rid}
        asked = member.client.generate(body, timeout_s=self._remote.step_timeout_s)
        meta_info = await self._on(member, rid, asked)
        with self._reading(meta_info):
            return readout.evidence(step, meta_info)

    async def _attempt_generation(
        self, step: GenerationStep, member: Member, *, pieces: "asyncio.Queue[Generated | None]"
    ) -> None:
        """A generation that has begun cannot move to another worker, which would go on differently."""
        rid = next(self._rids)
        body = generation.request(step) | {"rid": rid}
        cutter, began = generation.Pieces(step), False

        async def pump() -> None:
            nonlocal began
            answers = member.client.stream(body, timeout_s=self._remote.step_timeout_s)
            async with aclosing(answers):
                async for answer in answers:
                    with self._reading(answer["meta_info"]):
                        piece = cutter.take(answer)
                    began = True
                    pieces.put_nowait(piece)

        try:
            await self._on(member, rid, pump())
        except WorkerFault as fault:
            if not began:
                raise
            self._fleet.suspect(member, fault)
            raise EngineUnavailable(f"the worker was lost within a generation: {fault}") from fault

    async def _on(self, member: Member, rid: str, request: Coroutine[Any, Any, T]) -> T:
        """Run a request on one worker; if it ends here without an answer, it is ended there too."""
        task = asyncio.create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        with member.holding(task):
            try:
                await asyncio.wait({task})
            finally:
                if not task.done() or task.cancelled() or isinstance(task.exception(), WorkerLost):
                    self._abort(member, rid)
                task.cancel()
        if task.cancelled():
            raise WorkerFault("the worker was lost while the step was open")
        answer = task.result()
        member.answered_s = time.monotonic()
        return answer

    @contextmanager
    def _reading(self, meta_info: dict[str, Any]) -> Iterator[None]:
        """Read an answer that came over the network: what does not make sense is the worker's fault."""
        try:
            reason = meta_info.get("finish_reason") or {}
            if reason.get("type") == "abort" and reason.get("status_code") != HTTPStatus.BAD_REQUEST:
                raise WorkerBusy("the worker aborted the step, which nobody here asked for")
            if self._settings.plugin and wire.Stamp.decode(meta_info) is None:
                raise WorkerFault("the answer has no stamp of our hooks")
            yield
        except HookError as error:
            raise WorkerFault(str(error)) from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UnsupportedRequest(f"SGLang's answer to the step cannot be read: {error!r}") from error

    def _abort(self, member: Member, rid: str) -> None:
        """Let a worker drop a step, without waiting for it."""
        if len(self._aborts) >= MAX_OPEN_ABORTS:
            return
        task = asyncio.create_task(_abort(member, rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    def _on_lost(self) -> None:
        if self._state is EngineState.READY:
            logger.error("all workers are gone")
            self._end(EngineState.DOWN)

    def _end(self, state: EngineState) -> None:
        self._state = state
        self._ended.set()
        for task in self._open:
            task.cancel()

    def _refuse_unless_ready(self) -> None:
        if self._state is EngineState.DOWN:
            raise EngineUnavailable("all workers are gone")
        if self._state is not EngineState.READY:
            raise EngineUnavailable(f"the engine is {self._state}")

    def _describe(self, facts: list[WorkerFacts], handshake_s: float) -> EngineDescription:
        first = facts[0]
        return EngineDescription(
            kind="sglang_remote",
            model=first.model,
            device="+".join(sorted({each.device for each in facts})),
            dtype=first.dtype,
            capabilities=frozenset(
                each
                for each in Capability
                if each is not Capability.GENERATE or all(worker.generates for worker in facts)
            ),
            max_prompt_tokens=self._max_prompt_tokens,
            max_running_requests=sum(each.max_running_requests for each in facts),
            noise_floor_nats=readout.noise_floor_nats(first.dtype),
            startup_s={"handshake": handshake_s},
            hooks=first.hooks,
        )


async def _abort(member: Member, rid: str) -> None:
    try:
        await member.client.abort(rid)
    except EngineError as error:
        logger.debug("worker %s did not take an abort: %s", member.url, error)


def _start_error(faults: dict[str, EtiRankError]) -> EtiRankError:
    """One error for all: of the first kind that trying again does not mend, else EngineUnavailable."""
    lasting = (type(fault) for fault in faults.values() if not isinstance(fault, EngineUnavailable))
    kind = next(lasting, EngineUnavailable)
    return kind("; ".join(f"worker {url}: {fault}" for url, fault in faults.items()))
