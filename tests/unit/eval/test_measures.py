import math

import pytest
from ir_measures import Qrel, ScoredDoc

from eval import measures

QRELS = [Qrel("1", "a", 2), Qrel("1", "b", 1), Qrel("2", "a", 1)]
RUN = [ScoredDoc("1", "b", 3.0), ScoredDoc("1", "a", 2.0)]
LOG3 = math.log2(3)


def test_linear_gain_by_hand() -> None:
    values = measures.per_query(measures.NDCG, QRELS, RUN)
    assert values == {"1": pytest.approx((1 + 2 / LOG3) / (2 + 1 / LOG3))}


def test_exponential_gain_by_hand() -> None:
    values = measures.per_query(measures.NDCG_EXPONENTIAL, QRELS, RUN)
    # gdeval, which computes it, prints five decimals.
    assert values == {"1": pytest.approx((1 + 3 / LOG3) / (3 + 1 / LOG3), abs=1e-5)}


def test_equal_runs_do_not_differ() -> None:
    same = {str(n): n / 10 for n in range(10)}
    assert measures.compare(same, same) == measures.Comparison(0.0, 0.0, 0.0, 1.0)


def test_a_clear_difference_is_significant_and_in_its_interval() -> None:
    ours = {str(n): 0.5 + n / 100 for n in range(20)}
    theirs = {str(n): 0.3 + (n % 5) / 100 for n in range(20)}
    found = measures.compare(ours, theirs)
    assert found.low < found.difference < found.high
    assert found.low > 0
    assert found.p_value < 0.01
    assert measures.compare(theirs, ours).difference == pytest.approx(-found.difference)


def test_noise_is_not_significant() -> None:
    ours = {str(n): 0.5 + (-1) ** n * 0.1 for n in range(20)}
    assert measures.compare(ours, dict.fromkeys(ours, 0.5)).p_value > 0.5


def test_only_common_queries_count() -> None:
    found = measures.compare({"1": 1.0, "2": 0.0, "3": 0.5}, {"1": 0.5, "3": 0.0})
    assert found.difference == 0.5
