"""A deterministic engine without a model: for tests and for load studies of everything above it.

It lives by the same contract as an engine with a model. Log-probabilities are a function of the
token ids; time passes per uncached token; steps wait for a place; repeated prefixes are cached as
SGLang's radix cache would (whole prefixes, least recently used first out, never the position that
a read-out needs); and `kill` lets the runtime die.
"""

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from typing_extensions import override

from eti_rank.engine import generation, wire
from eti_rank.engine.protocol import (
    Capability,
    Engine,
    EngineDescription,
    EngineState,
    Evidence,
    Finish,
    Generated,
    GenerationStep,
    Labels,
    ScoringStep,
)
from eti_rank.errors import EngineUnavailable, UnsupportedRequest
from eti_rank.settings import EngineSettings

VOCABULARY_SIZE = 1 << 18


def hashed_logprobs(step: ScoringStep) -> tuple[float, ...]:
    """Log-probabilities, in nats, that depend on nothing but the token ids before each position.

    A token's probability is u / VOCABULARY_SIZE with u in (0, 1] from a hash of its prefix and
    itself, so no set of tokens has a total above one.
    """
    if isinstance(step.readout, Labels):
        prefix = _digest(step.token_ids)
        return tuple(_logprob(prefix, token) for token in step.readout.token_ids)
    start = step.readout.start
    prefix = _digest(step.token_ids[:start])
    values = []
    for token in step.token_ids[start:]:
        values.append(_logprob(prefix, token))
        prefix.update(_encoded(token))
    return tuple(values)


def _encoded(token: int) -> bytes:
    return token.to_bytes(8, "little")


def _digest(token_ids: tuple[int, ...]) -> "hashlib.blake2b":
    return hashlib.blake2b(b"".join(map(_encoded, token_ids)), digest_size=8)


def _logprob(prefix: "hashlib.blake2b", token: int) -> float:
    extended = prefix.copy()
    extended.update(_encoded(token))
    share = (int.from_bytes(extended.digest(), "little") + 1) / 2**64
    return math.log(share / VOCABULARY_SIZE)


def hashed_token(prompt: tuple[int, ...], position: int) -> int:
    """Token that follows a prompt and `position` generated tokens; depends on nothing else."""
    prefix = _digest(prompt)
    prefix.update(_encoded(position))
    return int.from_bytes(prefix.digest(), "little") % VOCABULARY_SIZE


def hashed_report(prompt: tuple[int, ...], position: int) -> wire.TokenReport:
    """A report with an entropy in [0, ln V) that belongs to that token."""
    share = hashed_token(prompt, position) / VOCABULARY_SIZE
    return wire.TokenReport(entropy_nats=share * math.log(VOCABULARY_SIZE), temperature=1.0)


class PrefixCache:
    """Which prefixes a radix cache would hold; one entry is one token position.

    Args:
        capacity_tokens: positions held; the least recently used ones leave, leaves before roots.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._held: OrderedDict[int, None] = OrderedDict()

    def match(self, token_ids: tuple[int, ...]) -> int:
        """Length of the longest held prefix, in tokens; marks it as used."""
        keys = []
        for key in _prefix_keys(token_ids):
            if key not in self._held:
                break
            keys.append(key)
        for key in reversed(keys):
            self._held.move_to_end(key)
        return len(keys)

    def insert(self, token_ids: tuple[int, ...]) -> None:
        """Hold every prefix of `token_ids`."""
        for key in reversed(_prefix_keys(token_ids)):
            self._held[key] = None
            self._held.move_to_end(key)
        while len(self._held) > self._capacity_tokens:
            self._held.popitem(last=False)


def _prefix_keys(token_ids: tuple[int, ...]) -> list[int]:
    keys, key = [], 0
    for token in token_ids:
        key = hash((key, token))
        keys.append(key)
    return keys


class Scripted(Engine):
    """The engine.

    Args:
        settings: `max_running_requests`, `max_total_tokens` and `radix_cache` are honoured.
        checkpoint: name that the description carries.
        max_prompt_tokens: longest prompt that is accepted.
        logprobs: the log-probabilities of a step, in the form that `Evidence.logprobs` demands.
        token_s: seconds per uncached token.
        start_s: seconds that a start takes.
        capabilities: read-outs that are offered.
    """

    def __init__(
        self,
        settings: EngineSettings,
        checkpoint: str,
        max_prompt_tokens: int,
        *,
        logprobs: Callable[[ScoringStep], tuple[float, ...]] = hashed_logprobs,
        token_s: float = 0.0,
        start_s: float = 0.0,
        capabilities: frozenset[Capability] = frozenset(Capability),
    ) -> None:
        self._logprobs = logprobs
        self._token_s = token_s
        self._start_s = start_s
        self._state = EngineState.NEW
        self._ended = asyncio.Event()
        self._places = asyncio.Semaphore(settings.max_running_requests)
        self._cache = PrefixCache(settings.max_total_tokens if settings.radix_cache else 0)
        self._open: set[asyncio.Task[Evidence]] = set()
        self._description = EngineDescription(
            kind="scripted",
            model=checkpoint,
            device="none",
            dtype="none",
            capabilities=capabilities,
            max_prompt_tokens=max_prompt_tokens,
            max_running_requests=settings.max_running_requests,
            noise_floor_nats=0.0,
            startup_s={"script": start_s},
            hooks=(wire.SAMPLING,),
        )
        self._was_ready = False

    @property
    @override
    def state(self) -> EngineState:
        return self._state

    @property
    @override
    def description(self) -> EngineDescription:
        if not self._was_ready:
            raise EngineUnavailable("the scripted engine has not been ready yet")
        return self._description

    @override
    async def start(self) -> None:
        if self._state is not EngineState.NEW:
            raise EngineUnavailable(f"the scripted engine cannot start: it is {self._state}")
        self._state = EngineState.STARTING
        await asyncio.sleep(self._start_s)
        if self._ended.is_set():
            raise EngineUnavailable("the scripted runtime died while it started")
        self._was_ready = True
        self._state = EngineState.READY

    @override
    async def close(self) -> None:
        self._end(EngineState.CLOSED)

    def kill(self) -> None:
        """Let the runtime die, as a crash of its process would."""
        self._end(EngineState.DOWN)

    def _end(self, state: EngineState) -> None:
        self._state = state
        self._ended.set()
        for task in self._open:
            task.cancel()

    @override
    async def wait_down(self) -> None:
        await self._ended.wait()

    @override
    async def generate(self, step: GenerationStep) -> AsyncGenerator[Generated, None]:
        if self._state is not EngineState.READY:
            raise EngineUnavailable(f"the scripted engine is {self._state}")
        if Capability.GENERATE not in self._description.capabilities:
            raise UnsupportedRequest("this engine does not generate")
        generation.check(
            step,
            vocabulary_size=VOCABULARY_SIZE,
            max_prompt_tokens=self._description.max_prompt_tokens,
            hooks=self._description.hooks,
        )
        cached = self._cache.match(step.token_ids[:-1])
        async with self._places:
            for position in range(step.max_new_tokens):
                await self._pass_time(1 if position else len(step.token_ids) - cached)
                token = hashed_token(step.token_ids, position)
                yield Generated(
                    step_id=step.step_id,
                    token_ids=(token,),
                    text=f" {token}",
                    reports=(hashed_report(step.token_ids, position),) if step.control else (),
                    finish=Finish.LENGTH if position + 1 == step.max_new_tokens else None,
                    prompt_tokens=len(step.token_ids),
                    cached_tokens=cached,
                    hooks=self._description.hooks,
                )
            self._cache.insert(step.token_ids)

    async def _pass_time(self, tokens: int) -> None:
        """Let the time of some tokens pass, unless the runtime dies meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), self._token_s * tokens)
        if self._ended.is_set():
            raise EngineUnavailable("the scripted runtime died while the step was open")

    @override
    async def score(self, step: ScoringStep) -> Evidence:
        if self._state is not EngineState.READY:
            raise EngineUnavailable(f"the scripted engine is {self._state}")
        self._refuse_unsupported(step)
        task = asyncio.create_task(self._prefill(step))
        self._open.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._open.discard(task)
        if task.cancelled():
            raise EngineUnavailable("the scripted runtime died while the step was open")
        return task.result()

    async def _prefill(self, step: ScoringStep) -> Evidence:
        async with self._places:
            cached = min(self._cache.match(step.token_ids), _cacheable_tokens(step))
            await asyncio.sleep(self._token_s * (len(step.token_ids) - cached))
            self._cache.insert(step.token_ids)
            return Evidence(
                step_id=step.step_id,
                logprobs=self._logprobs(step),
                prompt_tokens=len(step.token_ids),
                cached_tokens=cached,
            )

    def _refuse_unsupported(self, step: ScoringStep) -> None:
        length = len(step.token_ids)
        needed = Capability.LABEL if isinstance(step.readout, Labels) else Capability.LIKELIHOOD
        if needed not in self._description.capabilities:
            raise UnsupportedRequest(f"this engine does not offer {needed} read-outs")
        if not 1 <= length <= self._description.max_prompt_tokens:
            limit = self._description.max_prompt_tokens
            raise UnsupportedRequest(f"a prompt of {length} tokens; this engine takes 1 to {limit}")
        if not isinstance(step.readout, Labels) and not 1 <= step.readout.start < length:
            raise UnsupportedRequest(f"likelihood from position {step.readout.start} of {length} tokens")
        labels = step.readout.token_ids if isinstance(step.readout, Labels) else ()
        if not all(0 <= token < VOCABULARY_SIZE for token in (*step.token_ids, *labels)):
            raise UnsupportedRequest(f"a token id outside [0, {VOCABULARY_SIZE})")


def _cacheable_tokens(step: ScoringStep) -> int:
    """Positions that may come from the cache: the one before the first value read out may not."""
    if isinstance(step.readout, Labels):
        return len(step.token_ids) - 1
    return step.readout.start - 1
