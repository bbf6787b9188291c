"""Priority of waiting work: expected gain per resource, and nobody waits for ever.

    pi  = gain / (alpha C + beta M + gamma L)        (arXiv 2603.03310)
    key = min(pi, P) + a * (now - arrival)           served first where it is largest

C counts uncached prompt tokens, M tokens of KV cache held, L expected decode tokens; the prices alpha, beta
and gamma say what one token of each costs, in one unit of the caller's choice. The gain is whatever the
utility counts (nats of label entropy in the paper, DCG for `ndcg`), so pi is gain per cost, and so is P.

The paper's Proposition 3 (no starvation) does not hold for pi alone: under open arrivals, work of higher pi
can keep coming. It holds with two additions. pi is cut at a ceiling P, and waiting earns `a` per second.
Then who arrives P/a later never overtakes, and a request waits at most

    P / a + (work then ahead of it) / rate       `waiting_bound_s`

where the work ahead belongs to requests that arrived before `arrival + P/a`, with all they may still ask for.
The bound is finite only if that work is, so arrivals must be admitted no faster than they are served.

Age requests, not documents: all steps of a request share its arrival. A document's own waiting time would
bring every step to the front once, whatever its gain, and the order would become first come, first served.

Ties go to the earlier arrival, then to the lower index. While nothing arrives the order stays as it is,
because all keys grow alike; so it may be kept between steps.

All functions take arrays [N] and raise `DomainError`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eti_rank.control.domain import FloatArray, IntArray, finite, non_negative, positive, refuse
from eti_rank.errors import DomainError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What one token costs, in one unit for all three."""

    per_uncached_token: float = 1.0
    """Alpha: prefill compute."""
    per_kv_token: float = 0.0
    """Beta: KV cache held while the step runs."""
    per_decode_token: float = 1.0
    """Gamma: one decode step."""

    def __post_init__(self) -> None:
        prices = [self.per_uncached_token, self.per_kv_token, self.per_decode_token]
        if not non_negative("prices", prices).any():
            raise DomainError("prices must not all be 0: work would cost nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ageing:
    """How waiting is paid, in the unit of pi."""

    ceiling: float
    """P: no gain per cost counts above it."""
    per_second: float
    """a: what one second of waiting is worth."""

    def __post_init__(self) -> None:
        positive("ceiling", self.ceiling)
        positive("per_second", self.per_second)

    @property
    def overtaking_s(self) -> float:
        """P / a: who arrives later than this never overtakes."""
        return self.ceiling / self.per_second


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """What each step will use, in tokens; numbers or [N]."""

    uncached_tokens: npt.ArrayLike
    kv_tokens: npt.ArrayLike
    decode_tokens: npt.ArrayLike


def cost(demand: Demand, prices: Prices) -> FloatArray:
    """`alpha C + beta M + gamma L`, [N].

    Raises:
        DomainError: negative, infinite or NaN tokens.
    """
    return np.asarray(
        prices.per_uncached_token * non_negative("uncached_tokens", demand.uncached_tokens)
        + prices.per_kv_token * non_negative("kv_tokens", demand.kv_tokens)
        + prices.per_decode_token * non_negative("decode_tokens", demand.decode_tokens)
    )


def priority(expected_gain: npt.ArrayLike, costs: npt.ArrayLike) -> FloatArray:
    """`pi`, the expected gain per cost.

    Args:
        expected_gain: [N], >= 0.
        costs: [N], > 0, as `cost` gives it.

    Raises:
        DomainError: a negative gain, or a step that costs nothing (every step computes one token at least).
    """
    return np.asarray(non_negative("expected_gain", expected_gain) / positive("costs", costs))


def aged(pi: npt.ArrayLike, arrival_s: npt.ArrayLike, ageing: Ageing, *, now_s: float) -> FloatArray:
    """`min(pi, P) + a * (now - arrival)`.

    Args:
        pi: [N], >= 0.
        arrival_s: [N], when the step's request arrived, on the clock of `now_s`.
        ageing: P and a.
        now_s: not before any arrival.

    Raises:
        DomainError: negative pi, or an arrival after `now_s`.
    """
    arrivals = finite("arrival_s", arrival_s)
    refuse(arrivals > now_s, arrivals, f"arrival_s must be <= now_s = {now_s:.6g}")
    return np.asarray(
        np.minimum(non_negative("pi", pi), ageing.ceiling) + ageing.per_second * (now_s - arrivals)
    )


def order(keys: npt.ArrayLike, *, arrival_s: npt.ArrayLike, index: npt.ArrayLike) -> IntArray:
    """Positions in order of service: a total order, whatever the order of the arguments.

    Args:
        keys: [N], larger first; `priority` or `aged`.
        arrival_s: [N], breaks ties, earlier first.
        index: [N], breaks the ties left, lower first; distinct for steps that share an arrival.

    Returns:
        [N], a permutation of 0..N-1.

    Raises:
        DomainError: NaN, or shapes that differ.
    """
    ranked, arrivals, indices = finite("keys", keys), finite("arrival_s", arrival_s), np.asarray(index)
    if not ranked.shape == arrivals.shape == indices.shape:
        raise DomainError(
            f"keys, arrival_s and index must share a shape [N], got {ranked.shape}, {arrivals.shape} "
            f"and {indices.shape}"
        )
    return np.lexsort((indices, arrivals, -ranked))


def waiting_bound_s(ageing: Ageing, *, work_ahead: float, rate: float) -> float:
    """Longest time until a request's first step begins.

    Args:
        ageing: P and a.
        work_ahead: what is unserved, `overtaking_s` after the request arrived, of all requests that arrived
            before then, the running step included; any unit (tokens, say).
        rate: work served per second, > 0.

    Raises:
        DomainError: negative work, or a rate <= 0.
    """
    work, speed = non_negative("work_ahead", work_ahead), positive("rate", rate)
    return ageing.overtaking_s + float(work / speed)
