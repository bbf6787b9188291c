"""nDCG@10 by `ir-measures`, and the paired bootstrap between two runs.

Two gains are in use: linear (trec_eval's and ir_measures' default) and exponential, 2^grade - 1
(Burges et al. 2005), which the published figures on noveleval use.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import ir_measures
import numpy as np
from ir_measures import Qrel, ScoredDoc, nDCG
from scipy import stats

NDCG = nDCG @ 10
NDCG_EXPONENTIAL = nDCG(dcg="exp-log2") @ 10
SEED = 20261201


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean difference of two runs over the same queries."""

    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided: twice the share of resamples on the other side of 0."""


def per_query(
    measure: ir_measures.measures.Measure, qrels: Iterable[Qrel], run: Iterable[ScoredDoc]
) -> dict[str, float]:
    """The measure of each query that is in the run and judged."""
    rows = list(run)
    asked = {row.query_id for row in rows}
    judged = [qrel for qrel in qrels if qrel.query_id in asked]
    return {m.query_id: m.value for m in ir_measures.iter_calc([measure], judged, rows)}


def mean(values: dict[str, float]) -> float:
    """Mean over queries."""
    return float(np.mean(list(values.values())))


def compare(ours: dict[str, float], theirs: dict[str, float], resamples: int = 10_000) -> Comparison:
    """Paired bootstrap over the queries that both have, at 95 % (Sakai, SIGIR 2006)."""
    queries = sorted(ours.keys() & theirs.keys())
    differences = np.array([ours[query] - theirs[query] for query in queries])
    if np.all(differences == differences[0]):
        constant = float(differences[0])
        return Comparison(constant, constant, constant, 1.0 if constant == 0 else 0.0)
    found = stats.bootstrap(
        (differences,), np.mean, n_resamples=resamples, method="percentile", rng=np.random.default_rng(SEED)
    )
    below = np.mean(found.bootstrap_distribution <= 0)
    above = np.mean(found.bootstrap_distribution >= 0)
    return Comparison(
        difference=float(differences.mean()),
        low=float(found.confidence_interval.low),
        high=float(found.confidence_interval.high),
        p_value=float(min(1.0, 2 * min(below, above))),
    )
