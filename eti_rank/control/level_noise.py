"""How good each level of reading is, fitted from a recorded score table.

The table holds one row per (query, document, level) with the level's raw score. Each level is compared with a
reference r, which is the label where there are labels, else the score of the top level:

    y_l = intercept_l + slope_l * r + error_l          least squares, with the reference as the regressor

`AffineMap` inverts that line and so puts a raw score on the reference's scale, with an error of covariance
E[l, m] = cov(error_l, error_m) / (slope_l slope_m). The posterior's model says E[l, l] = sigma_l^2 + B^2 and
E[l, m] = B^2, which is linear in the squares: they come from non-negative least squares (Lawson and Hanson
1974) over all entries of E, each weighted by what is known of it: documents / (E[l, l] E[m, m]).

Against the top level that level is right by definition: its sigma is the floor, B is 0, and what remains is
how well the cheaper levels foresee it. Their errors may still be correlated, since a longer read contains the
shorter one; `LevelFit.error_covariance` shows by how much.

A level whose scores do not rise with the reference is refused by name: no noise figure describes it.

A fit can be off where it is used, on another collection or after a change of prompt. `rescaled` takes a
request's own results as a check: how far scores fall from the prior and from each other says by which factor
all sigma_l are off, and its most probable value corrects them while the request runs.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt
from scipy import optimize

from eti_rank.control.domain import FloatArray, finite, refuse
from eti_rank.control.posterior import LevelNoise, Posterior
from eti_rank.errors import DomainError

SD_FLOOR = 1e-3
"""Smallest sigma_l, in sds of the reference: no level is taken to be without error."""
_FACTORS = np.exp2(np.linspace(-2.0, 2.0, 33))
"""By which all sigma_l may be off."""
_FACTOR_LN_SD = 0.7
"""A fit is believed to within a factor of 2, one sd: the prior of `rescaled`."""
_FEWEST_ROWS = 3
"""A line takes two; its error needs one more."""


@dataclass(frozen=True, slots=True)
class AffineMap:
    """From raw scores to the relevance scale: `(score - intercept) / slope`."""

    slope: float
    """> 0."""
    intercept: float

    def relevance(self, score: npt.ArrayLike) -> FloatArray:
        """Of scores of any shape, same shape; raises `DomainError` for NaN or infinity."""
        return np.asarray((finite("score", score) - self.intercept) / self.slope)


@dataclass(frozen=True, slots=True, eq=False)
class LevelFit:
    """What `posterior.update` needs to know about the levels."""

    maps: tuple[AffineMap, ...]
    """L of them."""
    noise: LevelNoise
    error_covariance: FloatArray
    """[L, L], E as measured, NaN where no document has both levels."""
    documents: int
    """With a reference."""


@dataclass(frozen=True, slots=True)
class ScorePrior:
    """From first-stage scores to a prior: `N(intercept + slope * score, variance)`."""

    slope: float
    intercept: float
    variance: float
    """> 0."""

    def mean(self, score: npt.ArrayLike) -> FloatArray:
        """Of scores of any shape, same shape; raises `DomainError` for NaN or infinity."""
        return np.asarray(self.intercept + self.slope * finite("score", score))


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """A recorded table; all columns [R], in any order of rows."""

    query: npt.NDArray[np.generic]
    document: npt.NDArray[np.generic]
    level: npt.NDArray[np.int64]
    """0..L-1, cheapest first."""
    score: FloatArray

    def __post_init__(self) -> None:
        columns = (self.query, self.document, self.level, self.score)
        if len({np.shape(column) for column in columns}) != 1 or np.ndim(self.score) != 1:
            raise DomainError(
                f"columns must share a shape [R], got {[np.shape(column) for column in columns]}"
            )
        if (
            not np.issubdtype(self.level.dtype, np.integer)
            or np.size(self.level) == 0
            or self.level.min() < 0
        ):
            raise DomainError("level must be whole numbers >= 0, of one row at least")
        finite("score", self.score)

    @property
    def levels(self) -> int:
        """L."""
        return int(self.level.max()) + 1


def fit_against_labels(table: ScoreTable, label: npt.ArrayLike) -> LevelFit:
    """Levels measured by the truth, shared bias included.

    Args:
        table: R rows.
        label: [R], the relevance of each row's pair (a grade, or a gain): the scale of all that follows.

    Raises:
        DomainError: a pair with two labels or a level twice, a level with fewer than 3 rows or whose scores
            do not rise with the label, NaN, or shapes that differ.
    """
    labels = finite("label", label)
    if labels.shape != table.score.shape:
        raise DomainError(f"label must be [R] like the table, got {labels.shape} and {table.score.shape}")
    wide, pair = _by_pair(table)
    reference = np.zeros(len(wide))
    reference[pair] = labels
    refuse(reference[pair] != labels, labels, "a pair must have one label")
    maps, errors = _lines(wide, reference)
    covariance, weights = _covariance(errors)
    noise = _decompose(covariance, weights, floor=SD_FLOOR * float(reference.std()))
    return LevelFit(maps, noise, covariance, len(wide))


def fit_against_top(table: ScoreTable) -> LevelFit:
    """Levels measured by how well they foresee the top level; needs no labels.

    Raises:
        DomainError: a level twice for a pair, a level with fewer than 3 pairs that also have the top level,
            or whose scores do not rise with the top level's, or NaN.
    """
    wide, _ = _by_pair(table)
    wide = wide[np.isfinite(wide[:, -1])]
    reference = wide[:, -1]
    maps, errors = _lines(wide, reference)
    covariance, _ = _covariance(errors)
    floor = SD_FLOOR * float(reference.std())
    return LevelFit(
        maps, LevelNoise(np.maximum(np.sqrt(np.diag(covariance)), floor), 0.0), covariance, len(wide)
    )


def fit_prior(first_stage: npt.ArrayLike, reference: npt.ArrayLike) -> ScorePrior:
    """What a first-stage score foretells of the reference, by least squares; one source at a time.

    Args:
        first_stage: [N], the source's scores.
        reference: [N], labels or top-level scores, on the scale of the level fit.

    Raises:
        DomainError: fewer than 3 rows, a constant score, a reference without spread, NaN, shapes that differ.
    """
    scores, targets = finite("first_stage", first_stage), finite("reference", reference)
    if scores.ndim != 1 or scores.shape != targets.shape:
        raise DomainError(
            f"first_stage and reference must share a shape [N], got {scores.shape}, {targets.shape}"
        )
    slope, intercept, error = _line("first_stage", scores, targets)
    variance = float(np.square(error).sum() / (scores.size - 2))
    return ScorePrior(slope, intercept, max(variance, (SD_FLOOR * float(targets.std())) ** 2))


def rescaled(posterior: Posterior, noise: LevelNoise) -> LevelNoise:
    """The noise with all sigma_l times the factor f that the posterior's own results make most probable.

    The likelihood is that of the posterior's model, per document with m levels seen, weighted mean y and
    precision P: y is N(prior mean, prior variance + B^2 + f^2 / P), and the squared deviations of its levels
    from y, in units of sigma_l, are f^2 times a chi-square of m - 1 degrees. The prior of ln f is normal
    around 0, so that few results change little.

    Args:
        posterior: of one request; with no result the noise comes back as it is.
        noise: as it was fitted, not a former result of this function.

    Raises:
        DomainError: the noise is of another number of levels.
    """
    if posterior.seen.shape[1] != noise.level_sd.shape[0]:
        raise DomainError(f"noise is of {noise.level_sd.shape[0]} levels, need {posterior.seen.shape[1]}")
    asked = posterior.seen.any(axis=1)
    seen, score = posterior.seen[asked], posterior.score[asked]
    precision = seen @ noise.level_precision
    evidence = np.where(seen, score, 0.0) @ noise.level_precision / precision
    scatter = (np.where(seen, np.square(score - evidence[:, None]), 0.0) @ noise.level_precision).sum()
    freedom = (seen.sum(axis=1) - 1).sum()
    surprise2 = np.square(evidence - posterior.prior_mean[asked])
    factor2 = np.square(_FACTORS)
    spread2 = (posterior.prior_variance[asked] + noise.shared_sd**2) + factor2[:, None] / precision  # [F, M]
    minus_twice_log = (
        (surprise2 / spread2 + np.log(spread2)).sum(axis=1)
        + scatter / factor2
        + freedom * np.log(factor2)
        + np.square(np.log(_FACTORS) / _FACTOR_LN_SD)
    )
    return LevelNoise(noise.level_sd * _FACTORS[minus_twice_log.argmin()], noise.shared_sd)


def _by_pair(table: ScoreTable) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Scores [pairs, L] with NaN where none was recorded, and each row's pair [R]."""
    query = np.unique(table.query, return_inverse=True)[1]
    document = np.unique(table.document, return_inverse=True)[1]
    keys = query.astype(np.int64) * (int(document.max()) + 1) + document
    pairs, pair = np.unique(keys, return_inverse=True)
    cells, times = np.unique(pair * table.levels + table.level, return_counts=True)
    refuse(times > 1, cells, "a pair must have each level once (cell of pair * L + level)")
    wide = np.full((pairs.size, table.levels), np.nan)
    wide[pair, table.level] = table.score
    return wide, pair


def _lines(wide: FloatArray, reference: FloatArray) -> tuple[tuple[AffineMap, ...], FloatArray]:
    """Each level's map, and errors [pairs, L] on the reference's scale, NaN where there is no score."""
    maps, errors = [], np.full(wide.shape, np.nan)
    for level in range(wide.shape[1]):
        rows = np.isfinite(wide[:, level])
        slope, intercept, error = _line(f"level {level}", reference[rows], wide[rows, level])
        if not slope > 0:
            raise DomainError(
                f"level {level}: scores must rise with the reference, got a slope of {slope:.6g}"
            )
        maps.append(AffineMap(slope, intercept))
        errors[rows, level] = error / slope
    return tuple(maps), errors


def _line(name: str, x: FloatArray, y: FloatArray) -> tuple[float, float, FloatArray]:
    if x.size < _FEWEST_ROWS:
        raise DomainError(f"{name}: need {_FEWEST_ROWS} rows at least, got {x.size}")
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        raise DomainError(f"{name}: scores and reference must both vary")
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    intercept = float(y.mean() - slope * x.mean())
    return slope, intercept, y - intercept - slope * x


def _covariance(errors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """E [L, L] and the number of documents behind each entry; two degrees of freedom went into the line."""
    known = np.isfinite(errors)
    filled = np.where(known, errors, 0.0)
    count = known.T.astype(np.float64) @ known
    with np.errstate(invalid="ignore", divide="ignore"):
        covariance = np.where(count >= _FEWEST_ROWS, filled.T @ filled / (count - 2.0), np.nan)
    return covariance, count


def _decompose(covariance: FloatArray, count: FloatArray, *, floor: float) -> LevelNoise:
    levels = len(covariance)
    entries = [
        (i, j) for i, j in combinations_with_replacement(range(levels), 2) if np.isfinite(covariance[i, j])
    ]
    design = np.zeros((len(entries), levels + 1))
    design[:, -1] = 1.0
    for row, (i, j) in enumerate(entries):
        if i == j:
            design[row, i] = 1.0
    variance = np.maximum(np.diag(covariance), floor**2)  # a level may be without error
    weight = np.sqrt([count[i, j] / (variance[i] * variance[j]) for i, j in entries])
    target = np.array([covariance[entry] for entry in entries])
    squares, _ = optimize.nnls(design * weight[:, None], target * weight)
    if levels == 1:
        # one level cannot tell its own error from the shared one
        squares = np.array([covariance[0, 0], 0.0])
    return LevelNoise(np.maximum(np.sqrt(squares[:-1]), floor), float(np.sqrt(squares[-1])))
