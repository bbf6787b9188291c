"""Who is among the k best: probabilities per document, and the cut between the k best and the rest.

With independent beliefs theta_i ~ N(mu_i, s_i^2) a document is among the k best when fewer than k others are
above it:

    P(i in top k) = integral f_i(x) * P(#{j != i : theta_j > x} < k) dx

The number of others above x is a Poisson binomial, whose first k terms `membership` computes by the exact
recursion, with document i left out by joining the recursion over those before it with that over those after.
Only the integral is numerical. Documents that are surely in or out take no part, which is most of them once a
ranking settles.

`cut_between` is the cheap companion for priorities: one number for the border and one for its spread.

Both take N documents and raise `DomainError`; means and sds share the relevance scale.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from eti_rank.control.domain import BoolArray, FloatArray, finite, non_negative
from eti_rank.errors import DomainError

_EDGES = 129
"""Points of the integral; the probabilities are then within 0.01 of those with 2,049 points."""
_SURE = 5.0
"""Standard deviations beyond which a document does not reach: 3e-7 of its probability."""


class Cut(NamedTuple):
    """The border between the k best and the rest."""

    place: float
    """-inf where k >= N: everybody is in."""
    sd: float


def cut_between(mean: npt.ArrayLike, sd: npt.ArrayLike, *, k: int) -> Cut:
    """Where the border lies, and how uncertain it is.

    `place` is where the expected number of documents above it is k; `sd` follows from that number's variance
    by the slope there (delta method), but is never above that of the documents nearest to the cut: in a wide
    gap the slope vanishes.

    Args:
        mean: [N], N >= 1.
        sd: [N], >= 0.
        k: >= 1; from N on, everybody is in.

    Raises:
        DomainError: k < 1, no document, a negative sd, or shapes that differ.
    """
    means, spreads = _documents(mean, sd, k)
    if k >= means.size:
        return Cut(-np.inf, 0.0)
    low, high = (means - 10.0 * spreads).min(), (means + 10.0 * spreads).max()
    place = optimize.brentq(lambda x: special.ndtr((means - x) / spreads).sum() - k, low, high)
    z2 = np.square((means - place) / spreads)
    near = np.exp(-0.5 * (z2 - z2.min()))  # the nearest documents' weights, safe from underflow
    contenders_sd = float(np.sqrt(near @ np.square(spreads) / near.sum()))
    inside = special.ndtr((means - place) / spreads)
    count_sd = float(np.sqrt((inside * (1.0 - inside)).sum()))
    slope = float(np.exp(-0.5 * z2.min()) * (near / spreads).sum() / np.sqrt(2.0 * np.pi))
    sd = count_sd / slope if count_sd < contenders_sd * slope else contenders_sd
    return Cut(float(place), sd)


def membership(mean: npt.ArrayLike, sd: npt.ArrayLike, *, k: int) -> FloatArray:
    """[N], probability of each document to be one of the k best; they sum to min(k, N).

    Documents of sd 0 that tie share the places that they tie for.

    Args:
        mean: [N], N >= 1.
        sd: [N], >= 0.
        k: >= 1; from N on, everybody is in.

    Raises:
        DomainError: as `cut_between`.
    """
    means, spreads = _documents(mean, sd, k)
    if k >= means.size:
        return np.ones(means.size)
    sure_in, sure_out = _sure(means, spreads, k)
    open_, places = ~(sure_in | sure_out), k - int(sure_in.sum())
    probability = sure_in.astype(np.float64)
    probability[open_] = _open_membership(means[open_], spreads[open_], places)
    return probability


def _sure(means: FloatArray, spreads: FloatArray, k: int) -> tuple[BoolArray, BoolArray]:
    """Documents that at least N - k others cannot reach, and those that cannot reach k others."""
    low, high = means - _SURE * spreads, means + _SURE * spreads
    return low > np.sort(high)[-(k + 1)], high < np.sort(low)[-k]


def _open_membership(means: FloatArray, spreads: FloatArray, k: int) -> FloatArray:
    """As `membership`, by recursion and trapezoids, for 1 <= k < M documents, or none."""
    if means.size == 0:
        return np.zeros(0)
    # edges where the documents are: quantiles of the pooled quantiles
    own = means[:, None] + spreads[:, None] * np.linspace(-_SURE, _SURE, _EDGES)
    edges = np.quantile(own, np.linspace(0.0, 1.0, _EDGES))
    above = special.ndtr((means[:, None] - edges) / spreads[:, None])  # [M, edges]
    fewer = _fewer_than_k_others(above, k)
    mass = above[:, :-1] - above[:, 1:]
    probability = (mass * (fewer[:, :-1] + fewer[:, 1:])).sum(axis=1) / 2.0
    probability = np.clip(probability, 0.0, 1.0)
    # what the trapezoids missed goes to the undecided
    undecided = probability * (1.0 - probability)
    missing = k - probability.sum()
    if undecided.sum() > 0:
        probability = probability + missing * undecided / undecided.sum()
    return np.asarray(np.clip(probability, 0.0, 1.0))


def _fewer_than_k_others(above: FloatArray, k: int) -> FloatArray:
    """[M, E], P(fewer than k of the other documents are above), from [M, E] of each document's P(above)."""
    documents, edges = above.shape
    after = np.empty((documents, k, edges))  # P(at most j of the later ones are above), j < k
    after[-1] = 1.0
    for i in range(documents - 1, 0, -1):
        after[i - 1] = after[i]
        after[i - 1, 1:] -= above[i] * (after[i, 1:] - after[i, :-1])
        after[i - 1, 0] -= above[i] * after[i, 0]
    before = np.zeros((k, edges))  # P(exactly j of the earlier ones are above), j < k
    before[0] = 1.0
    fewer = np.empty((documents, edges))
    for i in range(documents):
        fewer[i] = np.einsum("je,je->e", before, after[i, ::-1])
        up = above[i] * before
        before -= up
        before[1:] += up[:-1]
    return fewer


def _documents(mean: npt.ArrayLike, sd: npt.ArrayLike, k: int) -> tuple[FloatArray, FloatArray]:
    means, spreads = finite("mean", mean), non_negative("sd", sd)
    if means.ndim != 1 or means.shape != spreads.shape or means.size == 0:
        raise DomainError(f"need mean and sd [N], N >= 1, got {means.shape} and {spreads.shape}")
    if k < 1:
        raise DomainError(f"k must be >= 1, got {k}")
    # an sd of 0 becomes one far below any gap that counts
    floor = 1e-9 * max(float(np.ptp(means)), float(spreads.max()), 1e-3)
    return means, np.maximum(spreads, floor)
