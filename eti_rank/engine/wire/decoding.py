"""What a request that generates may ask of the hooks, and what they report of each of its tokens.

Everything here is a number or a name; the laws behind them are `control.temperature`, `control.pruning`
and `control.entropic_time`, and a value that they would refuse is refused before it is sent.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from eti_rank.control import pruning, temperature
from eti_rank.errors import DomainError

_CLOSED = ConfigDict(extra="forbid", strict=False, allow_inf_nan=False)
Surprisal = Literal["none", "unigram", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureControl:
    """Hold the entropy of the sampled distribution at a value; fields as in `control.temperature`."""

    __pydantic_config__ = _CLOSED

    law: Literal["solve", "feedback", "literal"]
    target_nats: float
    low: float = 0.1
    high: float = 2.0
    gain: float = 0.5
    quantile: float = 0.9
    rate: float = 0.05
    step_limit: float = 0.2
    dead_band_nats: float = 0.02
    start: float = 1.0
    """Temperature of the first token under `feedback` and `literal`; `solve` only begins its search there."""

    @property
    def setpoint(self) -> temperature.Setpoint:
        """H* and the limits of T."""
        limits = temperature.TemperatureLimits(low=self.low, high=self.high)
        return temperature.Setpoint(target_nats=self.target_nats, limits=limits)

    @property
    def tuning(self) -> temperature.FeedbackTuning:
        """How `feedback` moves; `literal` takes its gain and its limit of a step from here."""
        return temperature.FeedbackTuning(
            gain=self.gain,
            quantile=self.quantile,
            rate=self.rate,
            step_limit=self.step_limit,
            dead_band_nats=self.dead_band_nats,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningControl:
    """Let attention leave out blocks of the prompt that contribute little (`control.pruning`)."""

    __pydantic_config__ = _CLOSED

    block_tokens: int = 16
    window_tokens: int = 32
    """Last positions of the prompt whose attention measures the blocks."""
    refresh_steps: int = 32
    """Every so many tokens one step attends to everything, and measures the blocks anew."""
    surprisal: Surprisal = "none"
    """By what attention is weighted: nothing; -ln of the share of a token in its own prompt; or the model's
    log-probabilities of the prompt, which the request must ask SGLang for in any case."""
    confident_theta: float = 1.0
    low_nats: float = 0.5
    high_nats: float = 3.0
    first_blocks: int = 1
    last_blocks: int = 4
    min_blocks: int = 8
    max_dropped_mass: float = 0.05
    protected: tuple[tuple[int, int], ...] = ()
    """Ranges of prompt tokens, [begin, end), that are always attended to: query, instruction, suffix."""

    @property
    def schedule(self) -> pruning.Schedule:
        """How the threshold follows the entropy."""
        return pruning.Schedule(
            confident_theta=self.confident_theta, low_nats=self.low_nats, high_nats=self.high_nats
        )

    @property
    def guards(self) -> pruning.Guards:
        """What is kept whatever it contributes."""
        return pruning.Guards(
            first_blocks=self.first_blocks,
            last_blocks=self.last_blocks,
            min_blocks=self.min_blocks,
            max_dropped_mass=self.max_dropped_mass,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingControl:
    """What the hooks do for one request that generates; without one they leave it alone."""

    __pydantic_config__ = _CLOSED

    temperature: TemperatureControl | None = None
    """None samples at the request's own temperature."""
    pruning: PruningControl | None = None
    """None attends to everything."""
    bounds_top_k: int | None = None
    """Report, beside the exact entropy, what the k largest probabilities alone prove about it."""

    def check(self) -> None:
        """Refuse what the laws would refuse inside the scheduler process.

        Raises:
            DomainError: names the value and what would be right.
        """
        if control := self.temperature:
            _ = control.setpoint, control.tuning
            if not control.low <= control.start <= control.high:
                raise DomainError(f"start must lie in [{control.low}, {control.high}], got {control.start}")
        if blocks := self.pruning:
            _ = blocks.schedule, blocks.guards
            for name in ("block_tokens", "window_tokens", "refresh_steps"):
                if getattr(blocks, name) < 1:
                    raise DomainError(f"{name} must be >= 1, got {getattr(blocks, name)}")
            if bad := [pair for pair in blocks.protected if not 0 <= pair[0] < pair[1]]:
                raise DomainError(f"protected ranges are [begin, end) with 0 <= begin < end, got {bad[0]}")
        if self.bounds_top_k is not None and self.bounds_top_k < 1:
            raise DomainError(f"bounds_top_k must be >= 1, got {self.bounds_top_k}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReport:
    """What the hooks saw when one token was chosen. None: the hook that would know was not on."""

    entropy_nats: float | None = None
    """Of the model's own distribution: at temperature 1, before penalties, bias and grammar."""
    varentropy_nats2: float | None = None
    bounds_nats: tuple[float, float] | None = None
    """What the top-k probabilities prove about `entropy_nats`, where asked."""
    temperature: float | None = None
    """Used for this token; 0 where the request is greedy."""
    sampled_entropy_nats: float | None = None
    """Of the distribution at that temperature, after penalties, bias and grammar; only under a law."""
    reached: bool | None = None
    """Whether H* could be reached within the limits of T; only under `solve`."""
    entropic_time_nats: float | None = None
    """Entropic time of this request up to this token (`control.entropic_time`)."""
    kept_fraction: float | None = None
    """Of the context's blocks, how many attention looked at; 1 in a dense step."""
    dropped_mass: float | None = None
    """Attention that the left-out blocks had when they were last measured."""
