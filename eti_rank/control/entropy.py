"""Entropy of a next-token distribution: exact where the logits are there, bounded where they are not.

    H = -sum_i p_i ln p_i                                      (nats; Shannon 1948)
    V = sum_i p_i (ln p_i + H)^2 = dH / d ln T                 (varentropy, nats^2)

`p = softmax(z)` lies along the last axis; all leading axes are a batch. Everything is computed in float64 and
in log space: a token of probability zero has log-probability -inf and contributes nothing.

The paper (arXiv 2603.03310) names four estimators: full, top-k truncated, top-k with a tail correction, and
calibrated. The full and the calibrated one are here, the top-k ones in `entropy_bounds`. Two departures:

- The entropy of label tokens is meaningless without the mass that they hold: `label_entropy` returns both.
  A small mass is a format failure, not certainty.
- Calibration has two forms. A temperature corrects logits before anything is computed from them. An isotonic
  curve corrects the entropy itself: a calibrated entropy equals, on average, the surprisal of what came.

All functions raise `DomainError` for NaN, for a positive log-probability, and for k > V.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from eti_rank.control.domain import FloatArray, finite, non_negative, positive, reals, refuse
from eti_rank.errors import DomainError

MASS_TOLERANCE = 1e-5
"""How far float32 log-probabilities of one row may miss a total of 1."""
_ZERO_LOG = -750.0
"""exp() of this is 0 in float64, and 0 times it is 0, where 0 times -inf is not."""
_PIECE = 1 << 16
"""Logits per piece: half a megabyte in float64."""


@dataclass(frozen=True, slots=True, eq=False)
class RowStatistics:
    """What one pass over a row of logits yields; all fields have the batch's shape [...]."""

    entropy_nats: FloatArray
    varentropy_nats2: FloatArray
    log_sum_exp_nats: FloatArray
    """Of the logits divided by the temperature."""
    top_k_mass: FloatArray
    """Total probability of the k most probable tokens, in (0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelEntropy:
    """Entropy among labels, with what it is conditional on; fields have shape [...]."""

    entropy_nats: FloatArray
    mass: FloatArray
    """Probability that the next token is a label at all, in (0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class EntropyCurve:
    """Calibrated entropy as a non-decreasing function of the model's own, linear between knots [K]."""

    raw_nats: FloatArray
    """Strictly increasing."""
    calibrated_nats: FloatArray
    """Non-decreasing, >= 0."""

    def __post_init__(self) -> None:
        raw = finite("raw_nats", self.raw_nats)
        calibrated = non_negative("calibrated_nats", self.calibrated_nats)
        if raw.ndim != 1 or raw.shape != calibrated.shape or raw.size == 0:
            raise DomainError(
                f"a curve needs as many calibrated as raw knots, got {calibrated.shape} and {raw.shape}"
            )
        refuse(np.diff(raw) <= 0, np.diff(raw), "raw_nats must increase strictly; a difference")
        refuse(
            np.diff(calibrated) < 0, np.diff(calibrated), "calibrated_nats must not decrease; a difference"
        )


def log_softmax(logits: npt.ArrayLike) -> FloatArray:
    """Normalised log-probabilities.

    Args:
        logits: [..., V]; -inf marks a token that cannot come.

    Returns:
        [..., V], float64, each row of total probability 1.

    Raises:
        DomainError: NaN, +inf, or a row with no finite logit.
    """
    return np.asarray(special.log_softmax(_checked_logits(logits), axis=-1), dtype=np.float64)


def entropy(log_probs: npt.ArrayLike) -> FloatArray:
    """Entropy of whole distributions.

    Args:
        log_probs: [..., V], normalised.

    Returns:
        [...], nats, in [0, ln V].

    Raises:
        DomainError: NaN, a positive entry, or a row whose total is not 1 within `MASS_TOLERANCE`.
    """
    checked = checked_log_probs("log_probs", log_probs)
    mass = np.exp(special.logsumexp(checked, axis=-1))
    refuse(np.abs(mass - 1) > MASS_TOLERANCE, mass, "a row of log_probs must total 1 (use log_softmax)")
    return minus_p_ln_p(checked)


def row_statistics(logits: npt.ArrayLike, *, k: int, temperature: npt.ArrayLike = 1.0) -> RowStatistics:
    """Entropy, varentropy, log-sum-exp and top-k mass of softmax(logits / temperature).

    Args:
        logits: [..., V]; -inf marks a token that cannot come.
        k: how many tokens the top-k mass counts, 1..V.
        temperature: [...] or a number, > 0.

    Raises:
        DomainError: NaN, +inf, a row with no finite logit, k outside 1..V, or temperature <= 0.
    """
    checked = _checked_logits(logits)
    vocabulary = checked.shape[-1]
    if not 1 <= k <= vocabulary:
        raise DomainError(f"k must lie in 1..V = {vocabulary}, got {k}")
    heat = positive("temperature", temperature)
    peak = checked.max(axis=-1, keepdims=True)
    centred = checked - peak
    entropy_nats, varentropy, log_total = moments(centred, heat)
    head = np.partition(centred, vocabulary - k, axis=-1)[..., vocabulary - k :] / heat[..., None]
    return RowStatistics(
        entropy_nats=entropy_nats,
        varentropy_nats2=varentropy,
        log_sum_exp_nats=peak[..., 0] / heat + log_total,
        top_k_mass=np.minimum(np.exp(special.logsumexp(head, axis=-1) - log_total), 1.0),
    )


def entropy_and_varentropy(
    logits: npt.ArrayLike, temperature: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """H and V of softmax(logits / temperature): `row_statistics` without its selection of k.

    Args and raises as `row_statistics`; both results have shape [...].
    """
    return moments(centred_logits(logits), positive("temperature", temperature))[:2]


def centred_logits(logits: npt.ArrayLike) -> FloatArray:
    """Logits [..., V] moved so that each row's largest is 0; raises as `log_softmax`."""
    checked = _checked_logits(logits)
    return np.asarray(checked - checked.max(axis=-1, keepdims=True))


def label_entropy(label_log_probs: npt.ArrayLike) -> LabelEntropy:
    """Entropy of the answer, given that the answer is one of the labels.

    Args:
        label_log_probs: [..., L], of the label tokens, normalised over the whole vocabulary.

    Raises:
        DomainError: NaN, a positive entry, a total above 1, or labels that together have no probability.
    """
    checked = checked_log_probs("label_log_probs", label_log_probs)
    log_mass = special.logsumexp(checked, axis=-1)
    mass = np.exp(log_mass)
    refuse(mass == 0, mass, "labels must have a total probability > 0 (none of them can come)")
    refuse(mass > 1 + MASS_TOLERANCE, mass, "labels must have a total probability <= 1 (a label twice?)")
    return LabelEntropy(
        entropy_nats=minus_p_ln_p(np.minimum(checked - log_mass[..., None], 0.0)),
        mass=np.minimum(mass, 1.0),
    )


def fit_entropy_curve(entropy_nats: npt.ArrayLike, surprisal_nats: npt.ArrayLike) -> EntropyCurve:
    """Least-squares isotonic curve from recorded steps (pool adjacent violators, as scipy has it).

    Args:
        entropy_nats: [N], the model's entropy before each token.
        surprisal_nats: [N], `-ln p` of the token that came.

    Raises:
        DomainError: no step, shapes that differ, a negative or infinite value.
    """
    raw, seen = non_negative("entropy_nats", entropy_nats), non_negative("surprisal_nats", surprisal_nats)
    if raw.ndim != 1 or raw.shape != seen.shape or raw.size == 0:
        raise DomainError(
            f"need as many surprisals as entropies, in one row, got {seen.shape} and {raw.shape}"
        )
    knots, position, steps = np.unique(raw, return_inverse=True, return_counts=True)
    mean_seen = np.bincount(position, weights=seen) / steps
    fitted = optimize.isotonic_regression(mean_seen, weights=steps).x
    # the ends of each level determine the curve; the knots between them are on the line
    inner = np.r_[False, (fitted[1:-1] == fitted[:-2]) & (fitted[1:-1] == fitted[2:]), False][: fitted.size]
    return EntropyCurve(raw_nats=knots[~inner], calibrated_nats=fitted[~inner])


def calibrated_entropy(entropy_nats: npt.ArrayLike, curve: EntropyCurve) -> FloatArray:
    """The entropies [...] through `curve`; beyond its knots, its end values.

    The other calibration, a temperature, is `entropy_and_varentropy(logits, temperature)`.

    Raises:
        DomainError: a negative, infinite or NaN entropy.
    """
    checked = non_negative("entropy_nats", entropy_nats)
    return np.asarray(np.interp(checked, curve.raw_nats, curve.calibrated_nats))


def moments(centred: FloatArray, temperature: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """H, V and ln sum exp, each [...], of centred logits [..., V] at checked temperatures.

    Works through the rows in pieces that stay in a core's cache, which halves its time on a vocabulary.
    """
    batch, vocabulary = centred.shape[:-1], centred.shape[-1]
    rows = centred.reshape(-1, vocabulary)
    heat = np.broadcast_to(temperature, batch).reshape(-1, 1)
    sums = np.empty((3, len(rows)))
    for begin in range(0, len(rows), piece := max(1, _PIECE // vocabulary)):
        part = slice(begin, begin + piece)
        scaled = np.maximum(rows[part] / heat[part], _ZERO_LOG)
        terms = np.exp(scaled)
        for order in range(3):
            sums[order, part] = terms.sum(axis=-1)
            terms *= scaled
    total, first, second = sums.reshape(3, *batch)
    mean = first / total
    log_total = np.log(total)
    varentropy = np.maximum(second / total - mean * mean, 0.0)
    return np.maximum(log_total - mean, 0.0), varentropy, log_total


def minus_p_ln_p(log_probs: FloatArray) -> FloatArray:
    """`-sum p ln p` along the last axis, for log-probabilities that are already checked."""
    clipped = np.maximum(log_probs, _ZERO_LOG)
    return np.asarray(0.0 - (np.exp(clipped) * clipped).sum(axis=-1))


def _checked_logits(logits: npt.ArrayLike) -> FloatArray:
    checked = _rows("logits", logits)
    refuse(np.isposinf(checked), checked, "logits must be below +inf")
    peak = checked.max(axis=-1)
    refuse(
        np.isneginf(peak),
        peak,
        "a row of logits must have a finite entry, its maximum",
    )
    return checked


def checked_log_probs(name: str, log_probs: npt.ArrayLike) -> FloatArray:
    """`log_probs` as float64 [..., tokens].

    Raises:
        DomainError: NaN, a positive entry, or no token axis.
    """
    checked = _rows(name, log_probs)
    refuse(checked > 0, checked, f"{name} must be <= 0 (logits? use log_softmax)")
    return checked


def _rows(name: str, values: npt.ArrayLike) -> FloatArray:
    checked = reals(name, values)
    if checked.ndim == 0 or checked.shape[-1] == 0:
        raise DomainError(f"{name} must have tokens along its last axis, got shape {checked.shape}")
    return checked
