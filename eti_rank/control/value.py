"""Value of evaluating: what a step is expected to gain, before it is paid for.

One family, one per utility. Divided by a step's cost it is the priority pi (`priority.priority`):

`ndcg`     expected gain in DCG@k of asking document i, the knowledge gradient (Frazier et al. 2008):

               KG_i = sum_{r=1..k} w_r * st * h(|mu_i - m_r| / st),      h(z) = phi(z) - z * Phi(-z)

           st is the sd by which the posterior mean will move, m_r the r-th best mean among the others,
           d_r = 1 / log2(r + 1), w_r = d_r - d_{r+1} for r < k and w_k = d_k, so that the w sum to d_1 = 1.
           It is exact, not a bound: DCG@k is the sum over r of w_r times the sum of the r best, and that sum
           changes with mu_i as max(mu_i, m_r) does. The gain of a document is its relevance, linear.
`top_k`    expected fall of the entropy of "document i is one of the k best" (nats): what is left undecided.
`entropy`  the paper's E[dH]: expected fall of the entropy of the label "document i is relevant" (nats).

The last two are the same formula. A yes/no answer of probability Phi((mu - c) / S) has an entropy close to
`ln 2 * exp(-x^2 / (2 C^2))`, x = (mu - c) / S, C^2 = pi ln 2 / 2 (Houlsby et al. 2011, arXiv 1112.5745; here
within 0.002 nats), and its expectation after a step that moves mu by N(0, st^2) is in closed form

    E[H'] = ln 2 * C S' / sqrt(A) * exp(-(mu - c)^2 / (2 A)),   S'^2 = S^2 - st^2,   A = st^2 + C^2 S'^2

The fall is computed with the approximation on both sides, so it is >= 0, and 0 where st = 0. For `top_k`, c
is the cut between the k best and the rest and S^2 = s^2 + the variance of the cut; for `entropy`, c is the
threshold of relevance and S^2 = s^2 + the label's own blur, which no evidence removes.

Where we depart from the paper: label entropy is not what nDCG@k needs (the label of a document far from the
cut may be undecided), so `ndcg` is the default and E[dH] is kept as one of three.

Shapes: N documents, L levels. All functions raise `DomainError`.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy import special

from eti_rank.control.domain import FloatArray, finite, non_negative, positive
from eti_rank.control.membership import cut_between
from eti_rank.control.posterior import LevelNoise, Posterior, mean_shift_sd
from eti_rank.errors import DomainError

_C2 = np.pi * np.log(2.0) / 2.0
_LN2 = float(np.log(2.0))
_TINY = 1e-300


class Utility(StrEnum):
    """What the ranking is for."""

    NDCG = "ndcg"
    TOP_K = "top_k"
    ENTROPY = "entropy"


@dataclass(frozen=True, slots=True)
class Label:
    """When a document counts as relevant: P(relevant) = Phi((theta - threshold) / blur), on theta's scale."""

    threshold: float
    blur: float
    """> 0: what stays undecided about the label of a document of known relevance."""

    def __post_init__(self) -> None:
        finite("threshold", self.threshold)
        positive("blur", self.blur)


def expected_gain(
    posterior: Posterior, noise: LevelNoise, utility: Utility, *, k: int, label: Label
) -> FloatArray:
    """[N, L], the expected gain of asking each level of each document; 0 where it was asked already.

    Args:
        posterior: of N documents.
        noise: of L levels.
        utility: which of the three.
        k: length of the list that counts, >= 1; more than N means N. Unused by `entropy`.
        label: used by `entropy` alone.

    Raises:
        DomainError: k < 1, or levels that do not fit.
    """
    shift = mean_shift_sd(posterior, noise)
    match utility:
        case Utility.NDCG:
            return knowledge_gradient(posterior.mean, shift, k=k)
        case Utility.TOP_K:
            cut = cut_between(posterior.mean, posterior.sd, k=k)
            if np.isneginf(cut.place):
                return np.zeros(shift.shape)
            return _entropy_fall(posterior, shift, centre=cut.place, blur=cut.sd)
        case Utility.ENTROPY:
            return _entropy_fall(posterior, shift, centre=label.threshold, blur=label.blur)


def discount_steps(k: int) -> FloatArray:
    """[k], w_r: the discount of DCG@k as weights of its nested top-r sets; they sum to d_1 = 1.

    Raises:
        DomainError: k < 1.
    """
    if k < 1:
        raise DomainError(f"k must be >= 1, got {k}")
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    return np.asarray(discounts - np.append(discounts[1:], 0.0))


def knowledge_gradient(mean: npt.ArrayLike, shift_sd: npt.ArrayLike, *, k: int) -> FloatArray:
    """[N, L], expected gain in DCG@k when a posterior mean moves by N(0, shift_sd^2) and the others stay.

    Args:
        mean: [N].
        shift_sd: [N, L], >= 0.
        k: >= 1; more than N means N.

    Raises:
        DomainError: k < 1, a negative or NaN shift, or shapes that differ.
    """
    means, shifts = finite("mean", mean), non_negative("shift_sd", shift_sd)
    if means.ndim != 1 or shifts.ndim != 2 or len(shifts) != len(means):
        raise DomainError(f"need mean [N] and shift_sd [N, L], got {means.shape} and {shifts.shape}")
    weights = discount_steps(min(k, max(means.size, 1)))
    best = np.append(-np.sort(-means), -np.inf)[: weights.size + 1]
    # a document of the r best is not among the others: the r-th of those is then one further down
    rivals = np.where(means[:, None] >= best[:-1], best[1:], best[:-1])  # [N, k]
    gap = np.abs(means[:, None] - rivals)
    gain = np.zeros(shifts.shape)
    for level in range(shifts.shape[1]):
        shift = np.maximum(shifts[:, level], _TINY)
        gain[:, level] = shift * (_normal_loss(gap / shift[:, None]) @ weights)
    return gain


def binary_entropy(probability: npt.ArrayLike) -> FloatArray:
    """`-p ln p - (1-p) ln (1-p)` in nats, same shape; exact, for reports.

    Raises:
        DomainError: a probability outside [0, 1].
    """
    p = non_negative("probability", probability)
    return np.asarray(special.entr(p) + special.entr(non_negative("1 - probability", 1.0 - p)))


def label_probability(posterior: Posterior, label: Label) -> FloatArray:
    """[N], P(relevant) under the belief: the blur of the label and of the belief add up."""
    return np.asarray(special.ndtr((posterior.mean - label.threshold) / np.hypot(posterior.sd, label.blur)))


def _entropy_fall(posterior: Posterior, shift: FloatArray, *, centre: float, blur: float) -> FloatArray:
    gap2 = np.square(posterior.mean - centre)[:, None]
    before = _C2 * (posterior.variance + blur**2)[:, None]
    # st^2 + C^2 S'^2, written so that st = 0 gives `before` to the last bit
    after = before - (_C2 - 1.0) * np.square(shift)
    left = np.maximum(before - _C2 * np.square(shift), 0.0)  # C^2 S'^2
    now = np.exp(-gap2 / (2.0 * before))
    then = np.sqrt(left / after) * np.exp(-gap2 / (2.0 * after))
    return np.asarray(_LN2 * np.maximum(now - then, 0.0))


def _normal_loss(z: FloatArray) -> FloatArray:
    """`h(z) = phi(z) - z Phi(-z)` for z >= 0, which is 0 at infinity."""
    near = np.minimum(z, 40.0)
    return np.asarray(np.maximum(_density(near) - near * special.ndtr(-near), 0.0))


def _density(z: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * np.square(z)) / np.sqrt(2.0 * np.pi))
