"""What an engine is: it takes scoring steps (token ids and what to read out) and returns evidence.

An engine knows tokens, not queries or documents. Cancelling the task that awaits `Engine.score`
cancels the step and frees its place in the runtime.
"""

import abc
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


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
