"""Entropic time: progress counted in resolved uncertainty instead of tokens.

    tau = sum_t max(0, H[t-1] - H[t])        (nats; arXiv 2603.03310)
    efficiency = tau / C                     C = tokens, FLOPs or seconds spent

We depart from the paper in what counts as a decrement. Summing positive parts rectifies noise: an estimate
that wanders by s.d. s around a constant earns 0.56 s per step for nothing. Here every step brings an interval
[L, U] that holds H, and tau is the largest entropic time that the intervals prove: over all ways to pick
disjoint pairs of steps s < t, the sum of L[s] - U[t] where the two intervals separate. That needs two numbers
per row, because the best choice extends step by step (`pending` is the best total with a pair still open):

    tau[t]     = max(tau[t-1], pending[t-1] - U[t])
    pending[t] = max(pending[t-1], tau[t] + L[t])

For intervals of width zero this is the paper's sum. It never decreases, never exceeds the true entropic time
of any path through the intervals, and is the smallest that such a path can have; intervals that all share a
point earn nothing. Comparing neighbours only, which is simpler, would miss any slow descent.

The signed net, first minus last estimate, stands beside tau: tau of a sum that goes up and down by the same
amount is positive, its net is zero. Calibrate entropies first (`entropy.calibrated_entropy`).

Records are frozen and hold numbers or arrays [B]; `rows.stack` and `rows.split` convert between the two.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from eti_rank.control.domain import FloatArray, finite, non_negative, positive, refuse
from eti_rank.control.entropy_bounds import EntropyBounds
from eti_rank.errors import DomainError


class CostUnit(StrEnum):
    """What an efficiency is counted against."""

    TOKENS = "tokens"
    FLOPS = "flops"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True, eq=False)
class Cost:
    """Resources spent, in one unit; costs of different units do not add."""

    amount: FloatArray | float
    unit: CostUnit

    def __post_init__(self) -> None:
        non_negative("amount", self.amount)

    def __add__(self, other: "Cost") -> "Cost":
        if self.unit is not other.unit:
            raise DomainError(f"costs must share a unit, got {self.unit} and {other.unit}")
        return Cost(self.amount + other.amount, self.unit)


@dataclass(frozen=True, slots=True, eq=False)
class Efficiency:
    """Entropic time per unit of cost."""

    nats_per_unit: FloatArray
    unit: CostUnit


@dataclass(frozen=True, slots=True, eq=False)
class EntropicTime:
    """What one row (or each of B rows) has resolved so far."""

    tau_nats: FloatArray
    """Proven decrements, never decreasing."""
    pending_nats: FloatArray
    """Best total with one decrement still open: `tau` plus a proven level to descend from."""
    first_nats: FloatArray
    last_nats: FloatArray

    @property
    def net_nats(self) -> FloatArray:
        """First minus last estimate, signed."""
        return np.asarray(self.first_nats - self.last_nats)


def around(entropy_nats: npt.ArrayLike, margin_nats: npt.ArrayLike = 0.0) -> EntropyBounds:
    """The interval of an estimate: `margin_nats` to either side, but not below zero.

    Args:
        entropy_nats: [...], >= 0.
        margin_nats: [...] or a number, >= 0: 0 for an exact entropy, some standard errors else.

    Raises:
        DomainError: negative, infinite or NaN.
    """
    estimate = non_negative("entropy_nats", entropy_nats)
    margin = non_negative("margin_nats", margin_nats)
    return EntropyBounds(lower_nats=np.maximum(estimate - margin, 0.0), upper_nats=estimate + margin)


def start(bounds: EntropyBounds, *, estimate_nats: npt.ArrayLike | None = None) -> EntropicTime:
    """Begin with the entropy before the first step.

    Args:
        bounds: shape [...].
        estimate_nats: [...], for the signed net; None takes the middle of `bounds`.

    Raises:
        DomainError: NaN, an infinite or negative end, or lower > upper.
    """
    lower, _, estimate = _checked(bounds, estimate_nats)
    return EntropicTime(
        tau_nats=np.zeros_like(lower), pending_nats=lower, first_nats=estimate, last_nats=estimate
    )


def advance(
    time: EntropicTime, bounds: EntropyBounds, *, estimate_nats: npt.ArrayLike | None = None
) -> EntropicTime:
    """The record after one more step; args and raises as `start`."""
    lower, upper, estimate = _checked(bounds, estimate_nats)
    tau = np.maximum(time.tau_nats, time.pending_nats - upper)
    return EntropicTime(
        tau_nats=tau,
        pending_nats=np.maximum(time.pending_nats, tau + lower),
        first_nats=time.first_nats,
        last_nats=estimate,
    )


def efficiency(tau_nats: npt.ArrayLike, cost: Cost) -> Efficiency:
    """`d tau / d C` over everything spent so far.

    Args:
        tau_nats: [...], >= 0.
        cost: an amount > 0, [...] or a number.

    Raises:
        DomainError: negative tau, or nothing spent (the ratio does not exist).
    """
    tau = non_negative("tau_nats", tau_nats)
    return Efficiency(np.asarray(tau / positive("cost.amount", cost.amount)), cost.unit)


def _checked(
    bounds: EntropyBounds, estimate_nats: npt.ArrayLike | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    lower = non_negative("bounds.lower_nats", bounds.lower_nats)
    upper = non_negative("bounds.upper_nats", bounds.upper_nats)
    refuse(lower > upper, lower, "bounds.lower_nats must be <= bounds.upper_nats")
    estimate = (lower + upper) / 2 if estimate_nats is None else finite("estimate_nats", estimate_nats)
    return lower, upper, np.asarray(estimate)
