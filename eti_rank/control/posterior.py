"""What is believed about each document: independent Gaussians, sharpened level by level.

A document has a hidden relevance theta ~ N(prior mean, prior variance), on the scale of the reference that
the levels were fitted against. Level l (skim, read, ...) answers

    y_l = theta + b + e_l,    b ~ N(0, B^2) once per document,
                              e_l ~ N(0, sigma_l^2) once per document and level

so the errors of two levels share b: what the model misunderstands about a document it misunderstands at
every depth. With the evidence precision P = sum over the levels seen of 1 / sigma_l^2 and its weighted mean
y = sum (y_l / sigma_l^2) / P, conjugacy gives exactly

    1 / variance = 1 / prior variance + 1 / (B^2 + 1/P)
    mean = variance * (prior mean / prior variance + y / (B^2 + 1/P))

Two consequences are meant. No amount of evidence brings the variance below `1 / (1/prior variance + 1/B^2)`,
the shared-bias floor. And e_l is drawn once: asking a level again is not a second observation, so a repeated
result replaces the first, whatever was asked in between. The order of results does not matter.

Units: all means and scores share one relevance scale, variances are its square. Shapes: N documents and
L levels, in their order of reading, cheapest first. All functions raise `DomainError`. The prior comes from
`level_noise.fit_prior` and first-stage scores, the noise from `level_noise.fit_level_noise`.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from eti_rank.control.domain import BoolArray, FloatArray, IntArray, finite, non_negative, positive, refuse
from eti_rank.errors import DomainError


@dataclass(frozen=True, slots=True, eq=False)
class LevelNoise:
    """How far a level's score may be from the truth."""

    level_sd: FloatArray
    """[L], sigma_l > 0, drawn once per document and level."""
    shared_sd: float
    """B >= 0, drawn once per document."""

    def __post_init__(self) -> None:
        if positive("level_sd", self.level_sd).ndim != 1 or np.size(self.level_sd) == 0:
            raise DomainError(f"level_sd must be [L] with L >= 1, got shape {np.shape(self.level_sd)}")
        non_negative("shared_sd", self.shared_sd)

    @property
    def level_precision(self) -> FloatArray:
        """[L], `1 / sigma_l^2`."""
        return np.asarray(1.0 / np.square(np.asarray(self.level_sd, dtype=np.float64)))


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """The belief and what it rests on; `update` returns a new record and leaves this one as it is."""

    prior_mean: FloatArray
    """[N]"""
    prior_variance: FloatArray
    """[N], > 0"""
    score: FloatArray
    """[N, L], 0 where a level was not seen."""
    seen: BoolArray
    """[N, L]"""
    mean: FloatArray
    """[N]"""
    variance: FloatArray
    """[N], > 0"""

    @property
    def sd(self) -> FloatArray:
        """[N], sqrt of the variance."""
        return np.asarray(np.sqrt(self.variance))


def from_prior(mean: npt.ArrayLike, variance: npt.ArrayLike, *, levels: int) -> Posterior:
    """The belief before any level was asked.

    Args:
        mean: [N].
        variance: [N] or one number for all, > 0.
        levels: L >= 1.

    Raises:
        DomainError: a variance <= 0, NaN, a shape that is not [N], or no level.
    """
    means = finite("mean", mean)
    variances = positive("variance", variance)
    if means.ndim != 1 or variances.shape not in {(), means.shape} or levels < 1:
        raise DomainError(
            f"need mean [N], variance [N] or one number and a level, got {means.shape}, {variances.shape} "
            f"and {levels}"
        )
    spread = np.broadcast_to(variances, means.shape).copy()
    shape = (means.size, levels)
    return Posterior(means, spread, np.zeros(shape), np.zeros(shape, dtype=np.bool_), means, spread)


def update(
    posterior: Posterior,
    noise: LevelNoise,
    *,
    document: npt.ArrayLike,
    level: npt.ArrayLike,
    score: npt.ArrayLike,
) -> Posterior:
    """The belief after results have arrived, one or many at once.

    Args:
        posterior: before.
        noise: of the same L levels.
        document: [M] or a number, positions in 0..N-1.
        level: as `document`, in 0..L-1. A pair seen before, or twice here, keeps its last score.
        score: as `document`, on the relevance scale (`level_noise.AffineMap` puts it there).

    Raises:
        DomainError: NaN, a position outside its range, or shapes that differ.
    """
    documents, levels, scores = _results(posterior, noise, document, level, score)
    table, seen = posterior.score.copy(), posterior.seen.copy()
    table[documents, levels] = scores
    seen[documents, levels] = True
    touched = np.unique(documents)
    mean, variance = posterior.mean.copy(), posterior.variance.copy()
    mean[touched], variance[touched] = _conjugate(
        posterior.prior_mean[touched], posterior.prior_variance[touched], table[touched], seen[touched], noise
    )
    return replace(posterior, score=table, seen=seen, mean=mean, variance=variance)


def winsorised(
    posterior: Posterior,
    noise: LevelNoise,
    *,
    document: npt.ArrayLike,
    level: npt.ArrayLike,
    score: npt.ArrayLike,
    sds: float,
) -> FloatArray:
    """[M], scores drawn in to `sds` of what the belief expects of them; a guard against heavy tails.

    A Gaussian belief takes an outlier at its word. Drawn in before `update`, a document's first answer moves
    its mean by no more than `sds` times the usual move (later ones a little more where the bias is shared,
    since what is known of the bias is not reckoned with). The price: the order of results matters a little.

    Args:
        posterior: before the results.
        noise: of the same L levels.
        document: [M] or a number, as in `update`.
        level: as `document`.
        score: as `document`.
        sds: > 0, in sds of the predicted score, sqrt(variance + sigma_l^2 + B^2).

    Raises:
        DomainError: NaN, sds <= 0, a position outside its range, or shapes that differ.
    """
    documents, levels, scores = _results(posterior, noise, document, level, score)
    spread2 = posterior.variance[documents] + 1.0 / noise.level_precision[levels] + noise.shared_sd**2
    reach = float(positive("sds", sds)) * np.sqrt(spread2)
    expected = posterior.mean[documents]
    return np.asarray(np.clip(scores, expected - reach, expected + reach))


def with_noise(posterior: Posterior, noise: LevelNoise) -> Posterior:
    """The same results, weighed anew; for when the noise was wrong (`level_noise.rescaled`).

    Raises:
        DomainError: the noise is of another number of levels.
    """
    _check_levels(posterior, noise)
    asked = posterior.seen.any(axis=1)
    mean, variance = posterior.prior_mean.copy(), posterior.prior_variance.copy()
    mean[asked], variance[asked] = _conjugate(
        mean[asked], variance[asked], posterior.score[asked], posterior.seen[asked], noise
    )
    return replace(posterior, mean=mean, variance=variance)


def variance_after(posterior: Posterior, noise: LevelNoise) -> FloatArray:
    """[N, L], each document's variance once that level has been asked too; unchanged where it was already.

    It does not depend on the score that will come.

    Raises:
        DomainError: the noise is of another number of levels.
    """
    _check_levels(posterior, noise)
    precision = posterior.seen @ noise.level_precision
    further = precision[:, None] + np.where(posterior.seen, 0.0, noise.level_precision)
    asked = 1.0 / (1.0 / posterior.prior_variance[:, None] + _effective(further, noise))
    return np.asarray(np.where(posterior.seen, posterior.variance[:, None], asked))


def mean_shift_sd(posterior: Posterior, noise: LevelNoise) -> FloatArray:
    """[N, L], sd of the posterior mean's move when that level is asked: `sqrt(variance - variance_after)`.

    For a document of variance s^2, an unseen level and no shared bias this is the familiar
    `s^2 / sqrt(s^2 + sigma_l^2)`. It is 0 for a level seen already.

    Raises:
        DomainError: as `variance_after`.
    """
    return np.asarray(
        np.sqrt(np.maximum(posterior.variance[:, None] - variance_after(posterior, noise), 0.0))
    )


def reach_sd(posterior: Posterior, noise: LevelNoise) -> FloatArray:
    """[N], sd of the posterior mean's move if every level not yet seen were asked; 0 where none is left.

    Raises:
        DomainError: as `variance_after`.
    """
    _check_levels(posterior, noise)
    everything = noise.level_precision.sum(keepdims=True)
    final = 1.0 / (1.0 / posterior.prior_variance + _effective(everything, noise))
    left = ~posterior.seen.all(axis=1)
    return np.asarray(np.sqrt(np.where(left, np.maximum(posterior.variance - final, 0.0), 0.0)))


def _conjugate(
    prior_mean: FloatArray, prior_variance: FloatArray, table: FloatArray, seen: BoolArray, noise: LevelNoise
) -> tuple[FloatArray, FloatArray]:
    precision = seen @ noise.level_precision
    evidence = np.where(seen, table, 0.0) @ noise.level_precision / precision
    effective = _effective(precision, noise)
    variance = 1.0 / (1.0 / prior_variance + effective)
    # prior plus gain times surprise: no cancellation when the prior mean is large
    return prior_mean + variance * effective * (evidence - prior_mean), variance


def _results(
    posterior: Posterior,
    noise: LevelNoise,
    document: npt.ArrayLike,
    level: npt.ArrayLike,
    score: npt.ArrayLike,
) -> tuple[IntArray, IntArray, FloatArray]:
    documents, levels = np.atleast_1d(document), np.atleast_1d(level)
    scores = np.atleast_1d(finite("score", score))
    if not (documents.shape == levels.shape == scores.shape and scores.ndim == 1):
        raise DomainError(
            f"document, level and score must share a shape [M], got {documents.shape}, {levels.shape} "
            f"and {scores.shape}"
        )
    _check_levels(posterior, noise)
    rows, columns = posterior.score.shape
    _check_positions("document", documents, rows)
    _check_positions("level", levels, columns)
    return documents, levels, scores


def _effective(precision: FloatArray, noise: LevelNoise) -> FloatArray:
    """`1 / (B^2 + 1/P)`, which is 0 at P = 0."""
    return np.asarray(precision / (1.0 + noise.shared_sd**2 * precision))


def _check_levels(posterior: Posterior, noise: LevelNoise) -> None:
    if posterior.seen.shape[1] != noise.level_sd.shape[0]:
        raise DomainError(
            f"noise is of {noise.level_sd.shape[0]} levels, the posterior of {posterior.seen.shape[1]}"
        )


def _check_positions(name: str, positions: IntArray, count: int) -> None:
    if not np.issubdtype(positions.dtype, np.integer):
        raise DomainError(f"{name} must be whole numbers, got {positions.dtype}")
    refuse((positions < 0) | (positions >= count), positions, f"{name} must be in 0..{count - 1}")
