"""Entropy from the k most probable tokens alone: what it is at least, at most, and likely.

Of each row the k largest probabilities `p_1 >= ... >= p_k` are known, normalised over all V tokens; the other
`m = V - k` tokens hold the mass `r = 1 - sum p`. With `H_k = -sum_{i<=k} p_i ln p_i` (nats):

    upper    = H_k + r ln(m / r)                  all tail tokens equal
    lower    = H_k - n p_k ln p_k - rho ln rho    n = floor(r / p_k),  rho = r - n p_k
    estimate = H_k - sum_j p_j ln p_j             p_j = p_k (j / k)^-s for ranks j = k+1..V

Source: the paper (arXiv 2603.03310) names the truncated value H_k and a corrected one. Neither says how wrong
it may be, so the bounds are ours: exact (every distribution with these top probabilities lies between) and
tight (both ends are attained). Stop and prune on `upper`, order by the estimate, explain with the interval.

The tail mass is refused when it is negative beyond rounding: log-probabilities that went through bfloat16
make it so, and then nothing computed from it is true.

All functions raise `DomainError` for NaN, for a positive log-probability, and for k > V.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from eti_rank.control.domain import FloatArray, refuse
from eti_rank.control.entropy import MASS_TOLERANCE, checked_log_probs, minus_p_ln_p
from eti_rank.errors import DomainError

TAIL_GROUPS = 512
"""Rank groups on which the power-law tail is evaluated."""


@dataclass(frozen=True, slots=True, eq=False)
class EntropyBounds:
    """Closed interval that holds the entropy; fields have shape [...]."""

    lower_nats: FloatArray
    upper_nats: FloatArray


def truncated_entropy(top_log_probs: npt.ArrayLike) -> FloatArray:
    """`H_k`: what the k known tokens contribute, always <= H.

    Not renormalised; `label_entropy` of the same tokens is the renormalised variant, which bounds nothing.

    Args:
        top_log_probs: [..., k], normalised over the whole vocabulary.

    Raises:
        DomainError: NaN or a positive entry.
    """
    return minus_p_ln_p(checked_log_probs("top_log_probs", top_log_probs))


def entropy_bounds(top_log_probs: npt.ArrayLike, *, vocabulary: int) -> EntropyBounds:
    """The smallest and the largest entropy that a distribution with these top probabilities can have.

    Exact for float64; the rounding of float32 log-probabilities can move an end by about 1e-5 nats.

    Args:
        top_log_probs: [..., k], the k largest of each row in any order, normalised over the whole vocabulary.
        vocabulary: V >= k.

    Raises:
        DomainError: NaN, a positive entry, k > V, a total above 1, or a tail that is too heavy for these to
            be the largest.
    """
    head = _head(top_log_probs, vocabulary)
    full = np.floor(np.divide(head.tail_mass, head.p_k, out=np.zeros_like(head.p_k), where=head.p_k > 0))
    rest = np.clip(head.tail_mass - full * head.p_k, 0.0, head.p_k)
    lower = head.entropy_nats + full * special.entr(head.p_k) + special.entr(rest)
    equal_share = head.tail_mass / max(head.tail_tokens, 1)
    upper = head.entropy_nats + head.tail_tokens * special.entr(equal_share)
    return EntropyBounds(lower_nats=np.minimum(lower, upper), upper_nats=upper)


def entropy_estimate(top_log_probs: npt.ArrayLike, *, vocabulary: int) -> FloatArray:
    """Point estimate: from p_k on the tail falls off as a power of the rank, with exactly the missing mass.

    One exponent s >= 0 always fits the mass, because s = 0 gives m p_k >= r and s -> inf gives 0. Ranks are
    evaluated in `TAIL_GROUPS` groups (single ranks at the front) whose tokens share one probability. That
    too is a possible tail, so the estimate lies within `entropy_bounds`.

    Args and raises as `entropy_bounds`; returns [...], nats.
    """
    head = _head(top_log_probs, vocabulary)
    if head.tail_tokens == 0:
        return head.entropy_nats
    edges = np.unique(np.rint(np.geomspace(head.k + 1, vocabulary + 1, TAIL_GROUPS)))
    log_ranks = np.log(np.sqrt(edges[:-1] * (edges[1:] - 1)) / head.k)  # [G], ln(j / k)
    log_sizes = np.log(np.diff(edges))  # [G]
    has_tail = head.tail_mass > 0
    log_ratio = np.log(np.where(has_tail, head.tail_mass, 1.0)) - np.log(np.where(has_tail, head.p_k, 1.0))
    exponent = _tail_exponent(log_ratio, log_ranks, log_sizes)
    share = special.softmax(
        log_sizes - exponent[..., None] * log_ranks, axis=-1
    )  # [..., G], of the tail mass
    within_tail = special.entr(share).sum(axis=-1) + (share * log_sizes).sum(axis=-1)
    return np.asarray(head.entropy_nats + head.tail_mass * within_tail + special.entr(head.tail_mass))


def _tail_exponent(log_ratio: FloatArray, log_ranks: FloatArray, log_sizes: FloatArray) -> FloatArray:
    """Solve `ln sum_g exp(log_sizes_g - s log_ranks_g) = log_ratio` for s [...].

    Newton from 0: the left side is convex and decreasing in s, so the iterates rise to the root.
    """
    exponent = np.zeros_like(log_ratio)
    for _ in range(100):
        terms = log_sizes - exponent[..., None] * log_ranks
        slope = (special.softmax(terms, axis=-1) * log_ranks).sum(axis=-1)
        step = np.maximum(special.logsumexp(terms, axis=-1) - log_ratio, 0.0) / slope
        exponent = exponent + step
        if np.all(step <= 1e-12 * (1 + exponent)):
            break
    return exponent


@dataclass(frozen=True, slots=True, eq=False)
class _Head:
    k: int
    tail_tokens: int
    entropy_nats: FloatArray
    p_k: FloatArray
    tail_mass: FloatArray


def _head(top_log_probs: npt.ArrayLike, vocabulary: int) -> _Head:
    checked = checked_log_probs("top_log_probs", top_log_probs)
    k = checked.shape[-1]
    if k > vocabulary:
        raise DomainError(f"k = {k} log-probabilities cannot be the top of a vocabulary of {vocabulary}")
    tail_tokens = vocabulary - k
    total = np.exp(checked).sum(axis=-1)
    refuse(
        total > 1 + MASS_TOLERANCE,
        total,
        "top_log_probs must total <= 1 (rounded to bfloat16? take them from a float32 softmax)",
    )
    p_k = np.exp(checked.min(axis=-1))
    room = tail_tokens * p_k
    refuse(
        1 - total > room + MASS_TOLERANCE,
        total,
        f"top_log_probs must be the {k} largest: {tail_tokens} smaller ones cannot reach 1 with a total",
    )
    return _Head(
        k=k,
        tail_tokens=tail_tokens,
        entropy_nats=minus_p_ln_p(checked),
        p_k=p_k,
        tail_mass=np.clip(1 - total, 0.0, room),
    )
