"""What an engine is: it scores prompts (token ids and what to read out), and it generates from them.

An engine knows tokens, not queries or documents. Cancelling the task that awaits `Engine.score`, or
closing the iterator of `Engine.generate`, cancels the step and frees its place in the runtime.
"""

import abc
import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from eti_rank.engine.wire import DecodingControl, TokenReport


class EngineState(StrEnum):
    """Where an engine is in its life."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    """It was ready, and its runtime died or stopped answering."""
    CLOSED = "closed"


class Capability(StrEnum):
    """What an engine may be asked for."""

    LABEL = "label"
    LIKELIHOOD = "likelihood"
    GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class Labels:
    """Read out: log-probability of each of these tokens as the next one after the prompt."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Read out: log-probability of each prompt token from position `start` to the end.

    `start` is at least 1, because the first token has nothing before it.
    """

    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringStep:
    """One prefill whose log-probabilities are wanted."""

    step_id: str
    """Unique among the steps that are open in the engine."""
    token_ids: tuple[int, ...]
    readout: Labels | Likelihood
    expected_gain: float = 0.0
    """Expected value of this step in the request's utility; travels on the wire to the scheduler."""
    arrived_s: float | None = None
    """When the step's request arrived, by `time.time`; all its steps age from then."""
    shared_prefix_tokens: int = 0
    """Leading tokens that other steps are expected to share; the runtime lets one of them go ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one step returned."""

    step_id: str
    logprobs: tuple[float, ...]
    """Nats; one per label token, or one per prompt token from `Likelihood.start`."""
    prompt_tokens: int
    cached_tokens: int
    hooks: tuple[str, ...] = ()
    """Names of our hooks that ran for this step inside the runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen, in SGLang's own terms; what is left alone has no effect."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    """Texts that end the generation, and are not part of it."""
    json_schema: str | None = None
    """JSON schema that the text must follow, as JSON."""
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStep:
    """One prompt to continue."""

    step_id: str
    """Unique among the steps that are open in the engine."""
    token_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = Sampling()
    control: DecodingControl | None = None
    """What our hooks measure and steer; None leaves the request to the runtime alone."""
    expected_gain: float = 0.0
    arrived_s: float | None = None
    shared_prefix_tokens: int = 0


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The model's end token, a stop text, or the end of what the schema allows."""
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A piece of a generation: what is new since the piece before."""

    step_id: str
    token_ids: tuple[int, ...]
    text: str
    reports: tuple[TokenReport, ...] = ()
    """One per token, where the step has a control."""
    finish: Finish | None = None
    """Set on the last piece."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the cache."""
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """What a started engine is; for `/info`, `doctor` and checks before submission."""

    kind: str
    model: str
    device: str
    dtype: str
    capabilities: frozenset[Capability]
    max_prompt_tokens: int
    max_running_requests: int
    noise_floor_nats: float
    """Largest difference of a log-probability seen between batch compositions of the same step."""
    startup_s: dict[str, float]
    """Phases of the start, in seconds, in order."""
    hooks: tuple[str, ...] = ()
    """Our hooks that the handshake has seen run."""


class Engine(abc.ABC):
    """A runtime that scores steps. Methods are called from one event loop."""

    @property
    @abc.abstractmethod
    def state(self) -> EngineState:
        """Where the engine is in its life, now."""

    @property
    @abc.abstractmethod
    def description(self) -> EngineDescription:
        """What was started.

        Raises:
            EngineUnavailable: the engine has not been ready yet.
        """

    @abc.abstractmethod
    async def start(self) -> None:
        """Start the runtime and prove that it works; returns when it is ready.

        Raises:
            ConfigurationError: settings or installation do not allow a start.
            HookError: our hooks are missing, moved or silent.
            EngineUnavailable: the runtime died while it started.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop the runtime; open steps raise EngineUnavailable. May be called twice."""

    @abc.abstractmethod
    async def score(self, step: ScoringStep) -> Evidence:
        """Run one step.

        Raises:
            UnsupportedRequest: this engine cannot do such a step (capability, length, token range).
            EngineUnavailable: the runtime is not ready, or died while the step was open.
            asyncio.CancelledError: the caller cancelled; the step's place is free again.
        """

    @abc.abstractmethod
    def generate(self, step: GenerationStep) -> AsyncGenerator[Generated, None]:
        """Continue one prompt; yields at least one piece, the last one with `finish`.

        Raises:
            UnsupportedRequest: this engine cannot do such a step (capability, length, token range, control).
            EngineUnavailable: the runtime is not ready, or died while the step was open.
        """

    @abc.abstractmethod
    async def wait_down(self) -> None:
        """Return once the engine is DOWN or CLOSED."""


async def score_all(engine: Engine, steps: Sequence[ScoringStep]) -> list[Evidence]:
    """Run steps at once; evidence in the order of the steps.

    Raises:
        EngineError: of the first step that failed; the others are cancelled.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.score(step)) for step in steps]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def generate_whole(engine: Engine, step: GenerationStep) -> Generated:
    """Run a generation to its end; everything in one piece. Raises as `Engine.generate`."""
    pieces = [piece async for piece in engine.generate(step)]
    return replace(
        pieces[-1],
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        text="".join(piece.text for piece in pieces),
        reports=tuple(report for piece in pieces for report in piece.reports),
    )
