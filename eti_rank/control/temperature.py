"""Temperature laws: hold the entropy of generated text at a set value H*.

With p proportional to exp(z / T), entropy rises with temperature at a known rate:

    dH / d ln T = Var_p(ln p) = V >= 0   (varentropy, nats^2; at most .4392 for 2 tokens, 36.58 for 151,936)

    law         next temperature              slope       behaviour
    off         T
    solve       H(T) = H*, on its own logits              holds H* at every step
    feedback    clip(T exp(-eta (H - H*)))    1 - eta V   stable for 0 < eta V < 2 (monotone below 1)
    literal     clip(T exp(+eta (H - H*)))    1 + eta V   leaves H*, ends at T_min or T_max

`literal` is the law as the paper prints it (arXiv 2603.03310), with T as temperature: positive feedback. It
is kept for comparison, and `parse_law` refuses it unless it is asked for by name. With the minus sign (the
same trajectories as with beta = 1/T as the controlled variable) the paper's Proposition 1 holds for eta V <
1. The clip alone bounds either law: bounded is not stable.

`feedback` regulates the average entropy only, for it answers to the step before. Its eta is `gain / q`, where
q follows an upper quantile of V slowly; dividing by the same step's V puts the mean 25 % too high on the
stream of `eval/theory.py`. A step limit and a dead band keep single tokens from moving it. Where this step's
logits are at hand, `solve` is better: it needs no memory and no tuning.

H* must lie between H(T_min) and H(T_max), which is at most ln K for K possible tokens. `check_target` says so
where a configuration is read; `Solution.reached` says so per step, because a row that allows a single token
(constrained decoding) has entropy 0 at any temperature.

An entropy that is held tells nobody anything: under `solve` it has no decrements, so entropic time stands
still. Scheduling, pruning and entropic time read the entropy at T = 1 instead (`row_statistics`).

These laws are for generated text. A temperature per pair corrupts a ranking: a spread of .5 in ln T inverts
8.2 % of document pairs, a common temperature none. Scores get one calibration per model and level.

All functions take numbers or arrays [B], return new frozen records, and raise `DomainError`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from eti_rank.control.domain import BoolArray, FloatArray, IntArray, non_negative, positive, refuse
from eti_rank.control.entropy import centred_logits, entropy_and_varentropy, moments
from eti_rank.control.entropy_bounds import EntropyBounds
from eti_rank.errors import DomainError

TOLERANCE_NATS = 1e-6
"""How close `solve` comes to H* where it can be reached."""
_RESOLUTION = 1e-15
"""Width of a bracket of ln T below which float64 cannot go."""
_MAX_PASSES = 200
"""More than bisection needs to bring any bracket below `_RESOLUTION`, alternating with Newton steps."""
_LEAST_VARENTROPY = 1e-3
"""Floor of the tracked quantile: keeps eta finite on rows that are certain for long."""


class Law(StrEnum):
    """How the temperature of the next step is chosen."""

    OFF = "off"
    SOLVE = "solve"
    FEEDBACK = "feedback"
    LITERAL = "literal"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TemperatureLimits:
    """Closed range that every law keeps to; numbers or [B]."""

    low: FloatArray | float = 0.1
    high: FloatArray | float = 2.0

    def __post_init__(self) -> None:
        low, high = positive("limits.low", self.low), positive("limits.high", self.high)
        refuse(low >= high, low, "limits.low must be < limits.high")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setpoint:
    """The entropy to hold, and the temperatures allowed for it; numbers or [B]."""

    target_nats: FloatArray | float
    limits: TemperatureLimits = field(default_factory=TemperatureLimits)

    def __post_init__(self) -> None:
        positive("target_nats", self.target_nats)


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Temperatures for this step, [B]."""

    temperature: FloatArray
    entropy_nats: FloatArray
    """At `temperature`."""
    reached: BoolArray
    """False where H* lies outside what the limits can do; `temperature` is then the nearer limit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeedbackTuning:
    """How `feedback` moves; numbers or [B]."""

    gain: FloatArray | float = 0.5
    """eta * V where V is at its quantile, in (0, 2)."""
    quantile: FloatArray | float = 0.9
    """Which quantile of the varentropy sets eta, in (0, 1)."""
    rate: FloatArray | float = 0.05
    """Largest move of ln q per step once it has settled, in (0, 1]."""
    step_limit: FloatArray | float = 0.2
    """Largest move of ln T per step, > 0."""
    dead_band_nats: FloatArray | float = 0.02
    """|H - H*| up to which T stays, >= 0."""

    def __post_init__(self) -> None:
        gain = positive("gain", self.gain)
        refuse(gain >= 2, gain, "gain must be < 2 (from there on the loop cycles)")
        quantile = positive("quantile", self.quantile)
        refuse(quantile >= 1, quantile, "quantile must be < 1")
        rate = positive("rate", self.rate)
        refuse(rate > 1, rate, "rate must be <= 1")
        positive("step_limit", self.step_limit)
        non_negative("dead_band_nats", self.dead_band_nats)


@dataclass(frozen=True, slots=True, eq=False)
class FeedbackState:
    """What `feedback` remembers of each row; numbers or [B]."""

    temperature: FloatArray
    """To use at the coming step."""
    varentropy_quantile_nats2: FloatArray
    steps: IntArray


def parse_law(name: str, *, unstable: Collection[str] = ()) -> Law:
    """The law of this name.

    Args:
        name: as written in a configuration.
        unstable: laws that are allowed although they do not hold H*; only naming `literal` here admits it.

    Raises:
        DomainError: unknown, or `literal` without being named in `unstable`.
    """
    if name not in list(Law):
        raise DomainError(f"temperature law must be one of {', '.join(Law)}, got {name!r}")
    law = Law(name)
    if law is Law.LITERAL and name not in unstable:
        raise DomainError(
            "temperature law 'literal' is positive feedback and ends at a limit; use 'solve' or 'feedback', "
            "or allow it by name to compare with the paper"
        )
    return law


def check_target(target_nats: npt.ArrayLike, *, vocabulary: int) -> None:
    """Refuse a target that no temperature reaches on any logits.

    Raises:
        DomainError: not in (0, ln V).
    """
    target, ceiling = positive("target_nats", target_nats), float(np.log(vocabulary))
    refuse(target >= ceiling, target, f"target_nats must be < ln V = {ceiling:.6g} for V = {vocabulary}")


def reachable(logits: npt.ArrayLike, limits: TemperatureLimits) -> EntropyBounds:
    """Entropies at the two limits: H* must lie between them.

    Args:
        logits: [..., V].
        limits: numbers or [...].
    """
    return EntropyBounds(
        lower_nats=entropy_and_varentropy(logits, limits.low)[0],
        upper_nats=entropy_and_varentropy(logits, limits.high)[0],
    )


def solve(logits: npt.ArrayLike, setpoint: Setpoint, *, guess: npt.ArrayLike = 1.0) -> Solution:
    """The temperature at which this step's own entropy is H*.

    Args:
        logits: [B, V]; -inf marks a token that cannot come.
        setpoint: numbers or [B].
        guess: a number or [B], > 0: where the search begins; the last step's temperature is a good one.

    Raises:
        DomainError: NaN, +inf, a row with no finite logit, or a guess <= 0.
    """
    centred = centred_logits(logits)
    return solve_with(
        lambda temperature: moments(centred, temperature)[:2],
        setpoint,
        guess=np.broadcast_to(positive("guess", guess), centred.shape[:-1]),
    )


def solve_with(
    statistics: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    setpoint: Setpoint,
    *,
    guess: npt.ArrayLike,
    tolerance_nats: float = TOLERANCE_NATS,
) -> Solution:
    """`solve` where the logits live elsewhere: `statistics` maps temperatures [B] to (H, V), each [B].

    Bisection of ln T, hastened by Newton steps (the slope V is known): about 6 calls instead of 30.

    Args:
        statistics: as `entropy_and_varentropy` of this step's logits.
        setpoint: numbers or [B].
        guess: [B], > 0.
        tolerance_nats: above the rounding of `statistics`; 1e-4 suits float32.
    """
    target = np.asarray(setpoint.target_nats, dtype=np.float64)
    floor, ceiling = np.log(setpoint.limits.low), np.log(setpoint.limits.high)
    place = np.clip(np.log(positive("guess", guess)), floor, ceiling)  # ln T
    # the nearest places visited on either side of the root
    low, high = np.full_like(place, -np.inf), np.full_like(place, np.inf)
    last_move = np.full_like(place, np.inf)
    for _ in range(_MAX_PASSES):
        entropy_nats, varentropy = statistics(np.exp(place))
        gap = entropy_nats - target
        low, high = np.where(gap < 0, place, low), np.where(gap > 0, place, high)
        beyond = ((gap < 0) & (place == ceiling)) | ((gap > 0) & (place == floor))
        settled = (np.abs(gap) <= tolerance_nats) | beyond | (high - low <= _RESOLUTION)
        if settled.all():
            break
        move = np.divide(gap, varentropy, out=np.asarray(np.copysign(np.inf, gap)), where=varentropy > 0)
        newton = np.clip(place - move, floor, ceiling)
        slow = np.abs(newton - place) > last_move / 2
        middle = (np.maximum(low, floor) + np.minimum(high, ceiling)) / 2
        following = np.where(slow | (newton <= low) | (newton >= high), middle, newton)
        following = np.where(settled, place, following)
        last_move, place = np.abs(following - place), following
    inner = np.clip(np.exp(place), setpoint.limits.low, setpoint.limits.high)
    at_high = np.where(place == ceiling, setpoint.limits.high, inner)
    return Solution(
        temperature=np.where(place == floor, setpoint.limits.low, at_high),
        entropy_nats=entropy_nats,
        reached=np.abs(gap) <= tolerance_nats,
    )


def start_feedback(temperature: npt.ArrayLike = 1.0) -> FeedbackState:
    """The state before the first step, for a number or [B] rows.

    q starts at 1 nat^2 and settles within some ten steps, fast at first (`rate` or 1/n, whichever is more).

    Raises:
        DomainError: temperature <= 0.
    """
    heat = positive("temperature", temperature)
    return FeedbackState(
        temperature=heat,
        varentropy_quantile_nats2=np.ones_like(heat),
        steps=np.zeros(heat.shape, dtype=np.int64),
    )


def feedback(
    state: FeedbackState,
    *,
    entropy_nats: npt.ArrayLike,
    varentropy_nats2: npt.ArrayLike,
    setpoint: Setpoint,
    tuning: FeedbackTuning,
) -> FeedbackState:
    """The state for the next step, from what this step measured at `state.temperature`.

    Args:
        state: numbers or [B].
        entropy_nats: H of softmax(z / T), same shape.
        varentropy_nats2: V of softmax(z / T), same shape.
        setpoint: H* and the limits of T.
        tuning: how fast to move.

    Raises:
        DomainError: a measurement that is negative, infinite or NaN.
    """
    varentropy = non_negative("varentropy_nats2", varentropy_nats2)
    steps = state.steps + 1
    rate = np.maximum(tuning.rate, 1 / steps)
    above = varentropy > state.varentropy_quantile_nats2
    # in balance where a share 1 - quantile of the steps pulls up and the others pull down
    drift = rate * (above - (1 - np.asarray(tuning.quantile)))
    tracked = np.maximum(state.varentropy_quantile_nats2 * np.exp(drift), _LEAST_VARENTROPY)
    wanted = feedback_step(
        state.temperature, entropy_nats=entropy_nats, eta=tuning.gain / tracked, setpoint=setpoint
    )
    move = np.clip(np.log(wanted / state.temperature), -np.asarray(tuning.step_limit), tuning.step_limit)
    quiet = np.abs(np.asarray(entropy_nats) - setpoint.target_nats) <= tuning.dead_band_nats
    moved = state.temperature * np.exp(np.where(quiet, 0.0, move))
    return FeedbackState(
        temperature=np.clip(moved, setpoint.limits.low, setpoint.limits.high),
        varentropy_quantile_nats2=tracked,
        steps=steps,
    )


def feedback_step(
    temperature: npt.ArrayLike, *, entropy_nats: npt.ArrayLike, eta: npt.ArrayLike, setpoint: Setpoint
) -> FloatArray:
    """`clip(T exp(-eta (H - H*)))`: the bare stable law, for any eta >= 0 (1 / nats)."""
    return _step(temperature, entropy_nats, -non_negative("eta", eta), setpoint)


def literal_step(
    temperature: npt.ArrayLike, *, entropy_nats: npt.ArrayLike, eta: npt.ArrayLike, setpoint: Setpoint
) -> FloatArray:
    """`clip(T exp(+eta (H - H*)))`: the law as printed in the paper, for any eta >= 0 (1 / nats)."""
    return _step(temperature, entropy_nats, non_negative("eta", eta), setpoint)


def _step(
    temperature: npt.ArrayLike, entropy_nats: npt.ArrayLike, signed_eta: FloatArray, setpoint: Setpoint
) -> FloatArray:
    gap = non_negative("entropy_nats", entropy_nats) - setpoint.target_nats
    with np.errstate(over="ignore"):  # beyond any limit is at the limit
        moved = positive("temperature", temperature) * np.exp(signed_eta * gap)
    return np.asarray(np.clip(moved, setpoint.limits.low, setpoint.limits.high))
