"""KV pruning: which blocks of context attention may leave out, and how wrong that can be.

    I_b = sum_{i in b} a_i * I(v_i)                    attention weight x surprisal   (arXiv 2603.03310)
    block b takes part if I_b >= theta(H) * mean(I)    theta falls as entropy rises
    ||o - o'|| <= 2 * dropped_mass * max ||v||         o' renormalised over what is kept

The paper leaves the unit of theta open. Here it counts in multiples of the row's mean contribution, so that
one schedule serves contexts of any length and theta = 0 keeps everything exactly. A model that is certain
looks at less: theta is largest up to `Schedule.low_nats` (the paper's H_min) and 0 from `high_nats` on.

I_b alone is not safe. It drops the attention sink, whose words carry no surprise: relative error 5.3 against
.84 with the first block kept, at 12.5 % of blocks kept (medians over synthetic rows, `test_pruning.py`).
`Guards` keep the first blocks, the last window, whatever the caller protects (query, instruction, suffix), a
minimum of blocks (the paper's B_min), and enough attention mass for the error bound to mean something.
Surprisal measures rarity, not relevance; without it I_b is the attention mass itself.

The bound holds per head, for the weights that the mass was measured with. Weights measured some steps ago
bound the error of those steps and are an estimate for this one. It follows from
`o - o' = sum_dropped a_i v_i - d / (1 - d) * sum_kept a_i v_i`, d the dropped mass: both terms are at most
`d max ||v||` long.

Prune at read time only: KV that was written under a block mask must never serve a dense request.

Rows are a batch [B]; blocks lie along the last axis, padded to the longest row. All raise `DomainError`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eti_rank.control.domain import BoolArray, FloatArray, finite, non_negative, refuse
from eti_rank.errors import DomainError

MASS_TOLERANCE = 0.01
"""How far the attention mass of a row may miss a total of 1 (half precision); it is normalised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The threshold as a function of entropy: constant, then falling linearly, then 0."""

    confident_theta: float = 1.0
    """theta at `low_nats` and below, in multiples of the mean contribution."""
    low_nats: float = 0.5
    high_nats: float = 3.0
    """From here on everything is kept."""

    def __post_init__(self) -> None:
        non_negative("confident_theta", self.confident_theta)
        low, high = non_negative("low_nats", self.low_nats), finite("high_nats", self.high_nats)
        refuse(low >= high, low, "low_nats must be < high_nats")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What is kept whatever it contributes."""

    first_blocks: int = 1
    """The attention sink."""
    last_blocks: int = 4
    """The window just before the position that attends."""
    min_blocks: int = 8
    """B_min: at least so many in all, where the row has them."""
    max_dropped_mass: float = 0.05
    """eps: the attention mass kept is at least 1 - eps."""

    def __post_init__(self) -> None:
        counts = np.array([self.first_blocks, self.last_blocks, self.min_blocks])
        non_negative("first_blocks, last_blocks and min_blocks", counts)
        if not counts.any():
            raise DomainError("first_blocks, last_blocks or min_blocks must be >= 1: a row must keep a block")
        eps = non_negative("max_dropped_mass", self.max_dropped_mass)
        refuse(eps >= 1, eps, "max_dropped_mass must be < 1")


@dataclass(frozen=True, slots=True, eq=False)
class BlockContribution:
    """What each block brings, [B, N]; padding is 0."""

    contribution: FloatArray
    """I_b, nats (or attention mass where no surprisal was given)."""
    mass: FloatArray
    """Attention mass; a row totals 1."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """Kept blocks in BSR form: row i keeps `indices[indptr[i] : indptr[i + 1]]`, ascending."""

    indptr: npt.NDArray[np.int32]
    """[B + 1]"""
    indices: npt.NDArray[np.int32]
    """[kept blocks of all rows]; counted from the row's own first block."""

    def of_row(self, row: int) -> npt.NDArray[np.int32]:
        """Kept block indices of one row."""
        return self.indices[self.indptr[row] : self.indptr[row + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class KeptBlocks:
    """The decision for a batch."""

    mask: BoolArray
    """[B, N], true where kept; padding is false."""
    dropped_mass: FloatArray
    """[B], in [0, eps]."""
    block_counts: npt.NDArray[np.int64]
    """[B], blocks that the row has."""

    @property
    def kept_fraction(self) -> FloatArray:
        """[B], of the row's blocks."""
        return np.asarray(self.mask.sum(axis=-1) / self.block_counts)

    def to_bsr(self) -> BlockRows:
        """Kept block indices per row, in one pair of arrays."""
        indptr = np.concatenate([[0], np.cumsum(self.mask.sum(axis=-1))])
        return BlockRows(indptr=indptr.astype(np.int32), indices=np.nonzero(self.mask)[1].astype(np.int32))


def block_contribution(
    attention: npt.ArrayLike, surprisal_nats: npt.ArrayLike | None, *, block_tokens: int
) -> BlockContribution:
    """Sum attention, and attention x surprisal, over blocks of tokens.

    Args:
        attention: [B, tokens], >= 0, 0 on padding; each row totals 1 within `MASS_TOLERANCE`.
        surprisal_nats: [B, tokens], >= 0: `-ln p` of each token; None counts every token alike.
        block_tokens: tokens per block, >= 1; the last block may be partial.

    Raises:
        DomainError: a negative or infinite value, other shapes, or a row that does not total 1.
    """
    weights = non_negative("attention", attention)
    if weights.ndim != 2 or block_tokens < 1:
        raise DomainError(
            f"attention must be [B, tokens] and block_tokens >= 1, got {weights.shape} and {block_tokens}"
        )
    total = weights.sum(axis=-1)
    refuse(np.abs(total - 1) > MASS_TOLERANCE, total, "a row of attention must total 1")
    weights = weights / total[:, None]
    starts = np.arange(0, weights.shape[1], block_tokens)
    mass = np.add.reduceat(weights, starts, axis=-1)
    if surprisal_nats is None:
        return BlockContribution(contribution=mass, mass=mass)
    surprisal = non_negative("surprisal_nats", surprisal_nats)
    if surprisal.shape != weights.shape:
        raise DomainError(
            f"surprisal_nats must have attention's shape {weights.shape}, got {surprisal.shape}"
        )
    return BlockContribution(np.add.reduceat(weights * surprisal, starts, axis=-1), mass)


def threshold(entropy_nats: npt.ArrayLike, schedule: Schedule) -> FloatArray:
    """theta(H) in multiples of the mean contribution.

    Args:
        entropy_nats: [B], of the step just taken; an upper bound where it is not exact.
        schedule: shared by the batch.

    Raises:
        DomainError: a negative, infinite or NaN entropy.
    """
    entropy = non_negative("entropy_nats", entropy_nats)
    certainty = (schedule.high_nats - entropy) / (schedule.high_nats - schedule.low_nats)
    return np.asarray(schedule.confident_theta * np.clip(certainty, 0.0, 1.0))


def keep_blocks(
    blocks: BlockContribution,
    theta: npt.ArrayLike,
    guards: Guards,
    *,
    block_counts: npt.ArrayLike | None = None,
    protected: npt.ArrayLike | None = None,
) -> KeptBlocks:
    """Apply the threshold, then the guards.

    Args:
        blocks: [B, N], as `block_contribution` gives them.
        theta: [B] or a number, >= 0, as `threshold` gives it.
        guards: shared by the batch.
        block_counts: [B], how many of the N blocks each row has; None means N for all.
        protected: [B, N] or [N], true for blocks that must stay.

    Raises:
        DomainError: negative theta, or block counts outside 1..N.
    """
    contribution, mass = blocks.contribution, blocks.mass
    rows, width = mass.shape
    counts = np.full(rows, width) if block_counts is None else np.asarray(block_counts, dtype=np.int64)
    refuse((counts < 1) | (counts > width), counts, f"block_counts must lie in 1..N = {width}")
    position, count = np.arange(width), counts[:, None]
    exists = position < count

    mean = (contribution.sum(axis=-1) / counts)[:, None]
    keep = contribution >= non_negative("theta", theta).reshape(-1, 1) * mean
    keep |= (position < guards.first_blocks) | (position >= count - guards.last_blocks)
    if protected is not None:
        keep |= np.asarray(protected, dtype=np.bool_)
    keep &= exists
    largest_first = _rank(np.where(keep, np.inf, np.where(exists, contribution, -1.0)))
    keep |= exists & (largest_first < guards.min_blocks)

    # of the rest, the lightest may go as long as together they weigh no more than eps
    candidates = np.where(keep, 0.0, mass)
    lightest_first = np.argsort(candidates, axis=-1, kind="stable")
    weight = np.cumsum(np.take_along_axis(candidates, lightest_first, axis=-1), axis=-1)
    may_go = np.empty_like(keep)
    np.put_along_axis(may_go, lightest_first, weight <= guards.max_dropped_mass, axis=-1)
    keep |= exists & ~may_go
    return KeptBlocks(mask=keep, dropped_mass=np.where(keep, 0.0, mass).sum(axis=-1), block_counts=counts)


def output_error_bound(dropped_mass: npt.ArrayLike, max_value_norm: npt.ArrayLike) -> FloatArray:
    """Longest possible error of one head's attention output, in the norm of its values.

    Args:
        dropped_mass: [...], in [0, 1], of this head at this step.
        max_value_norm: [...] or a number, >= 0: the longest value vector in the row's context.

    Raises:
        DomainError: outside these ranges.
    """
    dropped = non_negative("dropped_mass", dropped_mass)
    refuse(dropped > 1, dropped, "dropped_mass must be <= 1")
    return np.asarray(2 * dropped * non_negative("max_value_norm", max_value_norm))


def _rank(values: FloatArray) -> npt.NDArray[np.int64]:
    """Place of each value in its row, the largest first, earlier ones first among equals; [B, N]."""
    descending = np.argsort(-values, axis=-1, kind="stable")
    rank = np.empty_like(descending)
    np.put_along_axis(rank, descending, np.arange(values.shape[-1])[None, :], axis=-1)
    return rank
