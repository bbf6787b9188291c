"""From scores to probabilities, and how honest those are.

A map is fitted once per (model, prompt, level), never per pair: a temperature per pair corrupts a ranking,
while every map here rises with the score and so leaves the order of a list as it is (isotonic may tie).

temperature   p = softmax(z / T), T by maximum likelihood               (Guo et al. 2017, arXiv 1706.04599)
Platt         p = 1 / (1 + exp(-(a s + b))), a and b by maximum likelihood on targets (n1 + 1) / (n1 + 2) and
              1 / (n0 + 2), so that separable data keep finite maps     (Platt 1999)
isotonic      p = the best non-decreasing steps in s, by least squares  (Zadrozny and Elkan 2002)

Expected calibration error: sum over bins of (count / N) * |mean probability - frequency|. It depends on the
bins and is biased upwards by about sqrt(bins / N) for few data; `reliability` returns what it is made of.

The solvers are scipy's and scikit-learn's. Scores and labels are arrays [N], labels are 0 or 1, and both must
occur: one class alone teaches nothing. All functions raise `DomainError`.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy import optimize, special
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from eti_rank.control.domain import FloatArray, IntArray, finite, refuse
from eti_rank.errors import DomainError

_LOG_TEMPERATURES = (-5.0, 7.0)
"""ln T is sought between them: T from 0.0067 to 1,097."""


class Binning(StrEnum):
    """How probabilities are put into bins."""

    EQUAL_WIDTH = "equal_width"
    EQUAL_MASS = "equal_mass"


@dataclass(frozen=True, slots=True)
class PlattMap:
    """`p = 1 / (1 + exp(-(slope * s + intercept)))`."""

    slope: float
    intercept: float

    def probability(self, score: npt.ArrayLike) -> FloatArray:
        """Of scores of any shape, same shape; raises `DomainError` for NaN or infinity."""
        return np.asarray(special.expit(self.slope * finite("score", score) + self.intercept))


@dataclass(frozen=True, slots=True, eq=False)
class IsotonicMap:
    """Linear between its knots, constant beyond them."""

    score: FloatArray
    """[K], increasing."""
    knot_probability: FloatArray
    """[K], non-decreasing, in [0, 1]."""

    def probability(self, score: npt.ArrayLike) -> FloatArray:
        """Of scores of any shape, same shape; raises `DomainError` for NaN or infinity."""
        return np.asarray(np.interp(finite("score", score), self.score, self.knot_probability))


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """What a reliability diagram shows; empty bins are left out, so B may be below what was asked."""

    count: IntArray
    """[B], >= 1."""
    mean_probability: FloatArray
    """[B], what was promised."""
    frequency: FloatArray
    """[B], what came."""

    @property
    def expected_calibration_error(self) -> float:
        """In [0, 1]."""
        return float(np.average(np.abs(self.mean_probability - self.frequency), weights=self.count))


def fit_temperature(logits: npt.ArrayLike, label: npt.ArrayLike) -> float:
    """T > 0 under which `softmax(logits / T)` explains the labels best.

    Args:
        logits: [N, K], K >= 2 label logits or log-probabilities.
        label: [N], the index of what was right, in 0..K-1.

    Raises:
        DomainError: NaN, shapes that differ, a label outside, or logits whose best T is 0 or infinite (every
            label is the largest logit, or the logits say nothing).
    """
    rows, right = finite("logits", logits), np.asarray(label)
    if rows.ndim != 2 or rows.shape[1] < 2 or right.shape != rows.shape[:1] or right.size == 0:
        raise DomainError(f"need logits [N, K >= 2] and label [N], got {rows.shape} and {right.shape}")
    if not np.issubdtype(right.dtype, np.integer):
        raise DomainError(f"label must be whole numbers, got {right.dtype}")
    refuse((right < 0) | (right >= rows.shape[1]), right, f"label must be in 0..{rows.shape[1] - 1}")
    chosen = rows[np.arange(right.size), right]
    if (chosen == rows.max(axis=1)).all():
        raise DomainError("every label has the largest logit: the best temperature would be 0")

    def loss_nats(log_temperature: float) -> float:
        inverse = np.exp(-log_temperature)
        return float((special.logsumexp(rows * inverse, axis=1) - chosen * inverse).mean())

    found = optimize.minimize_scalar(loss_nats, bounds=_LOG_TEMPERATURES, method="bounded").x
    if min(abs(found - bound) for bound in _LOG_TEMPERATURES) < 0.01:
        raise DomainError(f"the best temperature lies outside {np.exp(_LOG_TEMPERATURES).round(4).tolist()}")
    return float(np.exp(found))


def fit_platt(score: npt.ArrayLike, label: npt.ArrayLike) -> PlattMap:
    """The logistic curve of best likelihood.

    Raises:
        DomainError: NaN, a label other than 0 or 1, one class only, one score only, shapes that differ, or
            scores that fall as relevance rises.
    """
    scores, labels = _pairs(score, label)
    centre, width = scores.mean(), scores.std()
    if width == 0:
        raise DomainError("score must take two values at least")
    positives = labels.sum()
    target = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (labels.size - positives + 2))
    # a target between the classes is one row of each, weighted
    scaled = np.tile((scores - centre) / width, 2)[:, None]
    classes = np.repeat([1, 0], labels.size)
    model = LogisticRegression(C=np.inf, max_iter=1000, tol=1e-8)
    model.fit(scaled, classes, sample_weight=np.concatenate([target, 1 - target]))
    slope = float(model.coef_[0, 0] / width)
    _rising(slope)
    return PlattMap(slope, float(model.intercept_[0] - slope * centre))


def fit_isotonic(score: npt.ArrayLike, label: npt.ArrayLike) -> IsotonicMap:
    """The non-decreasing curve of least squares (pool adjacent violators).

    Raises:
        DomainError: as `fit_platt`; scores that fall as relevance rises give a constant, which is refused.
    """
    scores, labels = _pairs(score, label)
    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, labels)
    knots = np.asarray(model.X_thresholds_, dtype=np.float64)
    heights = np.asarray(model.y_thresholds_, dtype=np.float64)
    _rising(float(np.ptp(heights)))
    return IsotonicMap(knots, heights)


def reliability(
    probability: npt.ArrayLike, label: npt.ArrayLike, *, bins: int, binning: Binning = Binning.EQUAL_WIDTH
) -> Reliability:
    """Promised against observed relevance.

    Args:
        probability: [N], in [0, 1].
        label: [N], 0 or 1.
        bins: >= 1, at most.
        binning: equal mass keeps equal probabilities together, so its bins may differ in size.

    Raises:
        DomainError: NaN, a probability outside [0, 1], a label other than 0 or 1, no bin, shapes that differ.
    """
    promised, labels = _same_rows("probability", probability, label)
    refuse((promised < 0) | (promised > 1), promised, "probability must be in [0, 1]")
    if bins < 1:
        raise DomainError(f"bins must be >= 1, got {bins}")
    edges = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    if binning is Binning.EQUAL_MASS:
        edges = np.unique(np.quantile(promised, edges))
    _, place, count = np.unique(
        np.searchsorted(edges, promised, side="right"), return_inverse=True, return_counts=True
    )
    return Reliability(
        count=count,
        mean_probability=np.bincount(place, weights=promised) / count,
        frequency=np.bincount(place, weights=labels) / count,
    )


def _pairs(score: npt.ArrayLike, label: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    scores, labels = _same_rows("score", score, label)
    if np.ptp(labels) == 0:
        raise DomainError(f"label must hold both classes, got only {labels[0]:.0f}")
    return scores, labels


def _same_rows(name: str, values: npt.ArrayLike, label: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    checked, labels = finite(name, values), finite("label", label)
    if checked.ndim != 1 or checked.shape != labels.shape or checked.size == 0:
        raise DomainError(f"need {name} and label [N], N >= 1, got {checked.shape} and {labels.shape}")
    refuse((labels != 0) & (labels != 1), labels, "label must be 0 or 1")
    return checked, labels


def _rising(rise: float) -> None:
    if not rise > 0:
        raise DomainError("score must rise with relevance (a wrong sign, or a prompt that says nothing)")
