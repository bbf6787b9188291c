"""The synthetic world of the allocation study: queries, what scoring answers, and what a policy believes.

A query has 100 documents. The first stage knows a part of their relevance, three levels of reading know more,
at 1, 4 and 14 units of tokens; a deeper level extends a shallower one's prompt, so it costs the difference.

Quality is nDCG@10, by two gains. `linear`: the gain is the relevance (0 where negative), which is what the
knowledge gradient maximises; a service gets this by fitting its levels on the scale of the gain. `graded`:
the gain is 2^grade - 1 with grades 1 to 3 from relevances that 22, 12 and 5 % of documents exceed, so that
most of the order inside the list, and all of it below the first grade, counts for nothing.

In each cell the world departs from the belief in one way, or in none.
"""

from dataclasses import dataclass

import numpy as np

from eti_rank.control.domain import FloatArray
from eti_rank.control.posterior import LevelNoise

DOCUMENTS, K = 100, 10
LEVEL_TOKENS = np.array([1.0, 4.0, 14.0])
FULL_COST = DOCUMENTS * LEVEL_TOKENS[-1]
FIRST_STAGE_SD, PRIOR_SD = 0.6, 0.8
LEVEL_SD = np.array([1.0, 0.5, 0.2])
SHARED_SD = 0.5
MEASURES = ("linear", "graded")
GRADE_FROM = np.array([0.772, 1.175, 1.645])
DISCOUNTS = 1 / np.log2(np.arange(2, K + 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way in which belief and world relate."""

    name: str
    believed_sd_factor: float = 1.0
    true_shared_sd: float = 0.0
    believed_shared_sd: float = 0.0
    tail_freedom: float = np.inf
    """Degrees of freedom of the errors' Student t, scaled to the same variance; infinite is normal."""

    @property
    def believed(self) -> LevelNoise:
        """The noise that policies reckon with."""
        return LevelNoise(LEVEL_SD * self.believed_sd_factor, self.believed_shared_sd)


CELLS = (
    Cell(name="well specified"),
    Cell(name="sd believed half", believed_sd_factor=0.5),
    Cell(name="sd believed double", believed_sd_factor=2.0),
    Cell(name="shared bias, unknown", true_shared_sd=SHARED_SD),
    Cell(name="shared bias, fitted", true_shared_sd=SHARED_SD, believed_shared_sd=SHARED_SD),
    Cell(name="heavy tails", tail_freedom=3.0),
)


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """One candidate list; all policies see the same answers."""

    prior_mean: FloatArray
    """[N], what the first stage says."""
    answer: FloatArray
    """[N, L], the score of each level, on the relevance scale."""
    gain: FloatArray
    """[measures, N], >= 0."""
    ideal_dcg: FloatArray
    """[measures]"""

    def ndcg(self, mean: FloatArray) -> FloatArray:
        """[measures], nDCG@10 of the order of `mean`; ties by index."""
        best = np.argsort(-mean, kind="stable")[:K]
        return np.asarray(self.gain[:, best] @ DISCOUNTS / self.ideal_dcg)


def draw_query(random: np.random.Generator, cell: Cell) -> Query:
    """A query with one relevant document at least."""
    while True:
        prior_mean = random.normal(0, FIRST_STAGE_SD, DOCUMENTS)
        theta = prior_mean + random.normal(0, PRIOR_SD, DOCUMENTS)
        if theta.max() > GRADE_FROM[0]:
            break
    size = (DOCUMENTS, LEVEL_SD.size)
    if np.isinf(cell.tail_freedom):
        error = random.normal(size=size)
    else:
        error = random.standard_t(cell.tail_freedom, size) * np.sqrt(1 - 2 / cell.tail_freedom)
    shared = random.normal(0, 1, (DOCUMENTS, 1)) * cell.true_shared_sd
    grade = (theta[:, None] > GRADE_FROM).sum(axis=1)
    gain = np.stack([np.maximum(theta, 0.0), np.exp2(grade) - 1.0])
    ideal_dcg = -np.sort(-gain, axis=1)[:, :K] @ DISCOUNTS
    return Query(prior_mean, theta[:, None] + shared + LEVEL_SD * error, gain, ideal_dcg)
