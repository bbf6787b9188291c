"""When to stop evaluating, with the reason by its name.

Checked in this order, so that the reason is the strongest one that holds:

`complete`  every level of every document was asked.
`settled`   no document can cross the cut: even if everything still unasked were asked, none of the k best
            would be expected to change places with one outside, up to `confidence_sds`.
`budget`    no step left fits what remains of the budget.
`price`     the best expected gain per cost among the steps that fit is below the caller's price.
`not_yet`   go on.

`settled` compares how far posterior means can still move (`posterior.reach_sd`), not how uncertain they are:
uncertainty that no question can remove is no reason to go on asking. It looks at the set of the k best only;
the order inside it is the business of `price` under the `ndcg` utility. All functions raise `DomainError`.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from eti_rank.control.domain import FloatArray, finite, non_negative, positive
from eti_rank.errors import DomainError


class StopReason(StrEnum):
    """Why no further step is taken, or that one is."""

    NOT_YET = "not_yet"
    COMPLETE = "complete"
    SETTLED = "settled"
    BUDGET = "budget"
    PRICE = "price"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """The limits; an infinite budget and a price of 0 never stop anything."""

    budget: float = float("inf")
    """In the unit of the costs, >= 0."""
    price: float = 0.0
    """Smallest expected gain per unit of cost that is worth it, >= 0."""
    confidence_sds: float = 3.0
    """How many sds of movement count as "can", > 0."""

    def __post_init__(self) -> None:
        if not self.budget >= 0:
            raise DomainError(f"budget must be >= 0, got {self.budget}")
        non_negative("price", self.price)
        positive("confidence_sds", self.confidence_sds)


def stop_reason(
    rule: StopRule,
    *,
    mean: npt.ArrayLike,
    reach_sd: npt.ArrayLike,
    gain: npt.ArrayLike,
    cost: npt.ArrayLike,
    open_steps: npt.ArrayLike,
    spent: float,
    k: int,
) -> StopReason:
    """Whether to stop, and why.

    Args:
        rule: the limits.
        mean: [N], posterior means.
        reach_sd: [N], as `posterior.reach_sd` gives it.
        gain: [N, L], as `value.expected_gain` gives it.
        cost: [N, L], > 0 where open, in the unit of the budget.
        open_steps: [N, L], true where the step may still be taken.
        spent: so far, >= 0.
        k: length of the list that counts, >= 1.

    Raises:
        DomainError: NaN, a negative value, an open step that costs nothing, or shapes that differ.
    """
    gains, costs = non_negative("gain", gain), non_negative("cost", cost)
    steps = np.asarray(open_steps, dtype=np.bool_)
    if not gains.shape == costs.shape == steps.shape:
        raise DomainError(
            f"gain, cost and open_steps must share a shape, got {gains.shape}, {costs.shape}, {steps.shape}"
        )
    positive("cost of an open step", costs[steps])
    left = rule.budget - non_negative("spent", spent)
    if not steps.any():
        return StopReason.COMPLETE
    if settled(mean, reach_sd, k=k, confidence_sds=rule.confidence_sds):
        return StopReason.SETTLED
    fits = steps & (costs <= left)
    if not fits.any():
        return StopReason.BUDGET
    if (gains[fits] / costs[fits]).max() < rule.price:
        return StopReason.PRICE
    return StopReason.NOT_YET


def settled(mean: npt.ArrayLike, reach_sd: npt.ArrayLike, *, k: int, confidence_sds: float) -> bool:
    """Whether no pair across the cut can still change places.

    A pair can when its gap is below `confidence_sds * hypot(reach of one, reach of the other)`: the two means
    move independently.

    Args:
        mean: [N].
        reach_sd: [N], >= 0.
        k: >= 1; from N on nothing lies outside.
        confidence_sds: > 0.

    Raises:
        DomainError: NaN, a negative reach, k < 1, or shapes that differ.
    """
    means, reach = finite("mean", mean), non_negative("reach_sd", reach_sd)
    if means.ndim != 1 or means.shape != reach.shape or k < 1:
        raise DomainError(f"need mean and reach_sd [N] and k >= 1, got {means.shape}, {reach.shape}, k {k}")
    order = np.argsort(-means, kind="stable")
    inside, outside = order[:k], order[k:]
    gap: FloatArray = means[inside, None] - means[outside]
    limit = positive("confidence_sds", confidence_sds) * np.hypot(reach[inside, None], reach[outside])
    return bool((gap >= limit).all())
