"""The policies of the allocation study: each says how much it wants each step; one loop serves all.

All share the belief, the budget rule and the answer (the order of posterior means), so they differ in what
they ask and in nothing else. A step reads a document up to a level; up to `WINDOW` steps are under way at
once, as in a service that keeps its engine busy. Wants are [N, L], larger first; -inf is never taken.

The exceptions are the last two. One rescales the noise by the query's own results, the other one also draws
outliers in. They were added after KG had lost budgets of the wrong-sd and heavy-tail cells, so they are
reported beside KG and never in its place.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from eti_rank.control.domain import FloatArray
from eti_rank.control.level_noise import rescaled
from eti_rank.control.posterior import LevelNoise, Posterior, from_prior, update, winsorised, with_noise
from eti_rank.control.priority import priority
from eti_rank.control.value import Label, Utility, binary_entropy, expected_gain, label_probability
from eval.allocation_world import FULL_COST, GRADE_FROM, LEVEL_TOKENS, MEASURES, PRIOR_SD, K, Query

WINDOW = 4
LATE_WINDOW, LATE_FROM = 16, 0.15
"""Past this fraction of the full cost the choice is coarser, to keep the study short."""
LABEL = Label(threshold=float(GRADE_FROM[0]), blur=0.3)
LUCB_SDS = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a policy may look at."""

    belief: Posterior
    noise: LevelNoise
    cost: FloatArray
    """[N, L], infinite where the level was read or passed."""
    spent: float
    budget: float
    random: np.random.Generator

    @property
    def following(self) -> FloatArray:
        """[N, L], 0 at each document's next level, -inf elsewhere."""
        depth = np.isinf(self.cost).sum(axis=1)
        return np.where(np.arange(self.cost.shape[1]) == depth[:, None], 0.0, -np.inf)


Policy = Callable[[State], FloatArray]


def random_step(state: State) -> FloatArray:
    """Any step, with equal chance."""
    return state.random.random(state.cost.shape)


def uniform(state: State) -> FloatArray:
    """Everything at the first level, then everything at the second; in the order of the first stage."""
    return _level_by_level(state, state.belief.prior_mean, first=0)


def fixed_cascade(state: State) -> FloatArray:
    """A third of the budget for each level, for the best so far; what a level leaves goes to the next."""
    levels = state.cost.shape[1]
    return _level_by_level(
        state, state.belief.mean, first=min(int(levels * state.spent / state.budget), levels - 1)
    )


def label_entropy(state: State) -> FloatArray:
    """The document whose label is least certain, per cost of its next level; no look ahead."""
    entropy_nats = binary_entropy(label_probability(state.belief, LABEL))
    return entropy_nats[:, None] / state.cost + state.following


def lucb(state: State) -> FloatArray:
    """Weakest of the best and strongest of the rest, in turn (Kalyanakrishnan et al. 2012); next level."""
    order = np.argsort(-state.belief.mean, kind="stable")
    inside, outside = order[:K], order[K:]
    margin = LUCB_SDS * state.belief.sd
    want = np.empty(order.size)
    unread = np.asarray(np.isfinite(state.cost).any(axis=1))
    for members, threat in ((inside, margin - state.belief.mean), (outside, margin + state.belief.mean)):
        ranked = np.lexsort((-threat[members], ~unread[members]))  # who has been read through comes last
        want[members[ranked]] = -np.arange(members.size)
    return want[:, None] + state.following


def per_cost(utility: Utility) -> Policy:
    """Expected gain in the utility per cost, over all levels still unread."""

    def want(state: State) -> FloatArray:
        gain = expected_gain(state.belief, state.noise, utility, k=K, label=LABEL)
        unread = np.isfinite(state.cost)
        return np.where(unread, priority(gain, np.where(unread, state.cost, 1.0)), -np.inf)

    return want


KNOWLEDGE_GRADIENT = "KG"
RESCALED = "KG, noise rescaled"
GUARDED = "KG, rescaled and guarded"
GUARD_SDS = 2.0
POLICIES: dict[str, Policy] = {
    "random": random_step,
    "uniform": uniform,
    "fixed cascade": fixed_cascade,
    "label entropy": label_entropy,
    "E[dH]": per_cost(Utility.ENTROPY),
    "boundary entropy": per_cost(Utility.TOP_K),
    "LUCB": lucb,
    KNOWLEDGE_GRADIENT: per_cost(Utility.NDCG),
    RESCALED: per_cost(Utility.NDCG),
    GUARDED: per_cost(Utility.NDCG),
}
RESCALES = frozenset({RESCALED, GUARDED})
"""What checks the noise against the results of the query, and weighs them anew."""
PLANS_BY_BUDGET = frozenset({"fixed cascade"})
"""What they do first depends on the budget, so each budget begins anew."""


def quality_at(
    policy: Policy,
    query: Query,
    believed: LevelNoise,
    budgets: FloatArray,
    random: np.random.Generator,
    *,
    rescale: bool,
    guard_sds: float,
) -> FloatArray:
    """[B, measures], nDCG@10 as each of the rising budgets is used up; what one bought, the next keeps."""
    belief = from_prior(query.prior_mean, PRIOR_SD**2, levels=LEVEL_TOKENS.size)
    cost = np.tile(LEVEL_TOKENS, (query.prior_mean.size, 1))
    noise, spent, quality = believed, 0.0, np.empty((budgets.size, len(MEASURES)))
    for place, budget in enumerate(budgets):
        while (cost <= budget - spent).any():
            want = policy(State(belief, noise, cost, spent, budget, random))
            document, level = _affordable(
                want, cost, budget - spent, WINDOW if spent < LATE_FROM * FULL_COST else LATE_WINDOW
            )
            if document.size == 0:
                break
            spent += cost[document, level].sum()
            score = query.answer[document, level]
            if np.isfinite(guard_sds):
                score = winsorised(belief, noise, document=document, level=level, score=score, sds=guard_sds)
            belief = update(belief, noise, document=document, level=level, score=score)
            if rescale:
                noise = rescaled(belief, believed)
                belief = with_noise(belief, noise)
            rest = cost[document] - cost[document, level][:, None]
            cost[document] = np.where(np.arange(LEVEL_TOKENS.size) <= level[:, None], np.inf, rest)
        quality[place] = query.ndcg(belief.mean)
    return quality


def _affordable(
    want: FloatArray, cost: FloatArray, left: float, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """The most wanted steps, at most `window`, one per document, that fit in what is left."""
    want = np.where(cost <= left, want, -np.inf)
    level = want.argmax(axis=1)
    best = want.max(axis=1)
    chosen = []
    for document in np.argsort(-best, kind="stable")[:window]:
        if best[document] == -np.inf or cost[document, level[document]] > left:
            continue
        chosen.append(document)
        left -= cost[document, level[document]]
    documents = np.array(chosen, dtype=np.int64)
    return documents, level[documents]


def _level_by_level(state: State, merit: FloatArray, *, first: int) -> FloatArray:
    """Next levels, those at `first` before deeper ones, those before shallower ones, by merit within each."""
    levels = np.arange(state.cost.shape[1])
    turn = np.where(levels >= first, levels - first, levels.size - 1 - levels + first + levels.size)
    # merits are a few units wide: a thousand keeps the turns apart
    return merit[:, None] - 1000.0 * turn + state.following
