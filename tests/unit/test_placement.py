"""Order and certainty of places."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eti_rank.control.after_scoring import top_n_probabilities
from eti_rank.control.value import binary_entropy
from eti_rank.ranking.outcome import EMPTY, Outcome, failed
from eti_rank.ranking.placement import MAX_TIED, place
from eti_rank.types import Document, RankedDocument, RerankRequest, Status


def outcome(raw: float) -> Outcome:
    return Outcome(status=Status.OK, raw_score=raw, relevance=1 / (1 + math.exp(-raw)))


def ranked(
    outcomes: list[Outcome | None],
    *,
    top_n: int | None = None,
    floor: float = 0.0,
    first_stage: list[float | None] | None = None,
) -> tuple[RankedDocument, ...]:
    scores = first_stage or [None] * len(outcomes)
    documents = tuple(
        Document(index=i, text=str(i), first_stage_score=score) for i, score in enumerate(scores)
    )
    request = RerankRequest(request_id="r", query="q", documents=documents, top_n=top_n)
    return place(request, {i: o for i, o in enumerate(outcomes) if o}, floor)


def order(rows: tuple[RankedDocument, ...]) -> list[int]:
    return [row.document.index for row in rows]


def test_scored_then_unread_then_empty_then_failed() -> None:
    rows = ranked(
        [failed("bad"), EMPTY, None, outcome(-3.0), None, outcome(2.0), EMPTY, failed("bad")],
        first_stage=[None, None, 0.5, None, 0.7, None, None, None],
    )
    assert order(rows) == [5, 3, 4, 2, 1, 6, 0, 7]
    assert [row.compute.level for row in rows[2:]] == ["none"] * 6
    assert [row.relevance_score for row in rows[2:]] == [0.0] * 6


def test_equal_scores_keep_the_input_order() -> None:
    assert order(ranked([outcome(1.0), outcome(2.0), outcome(1.0), outcome(2.0)])) == [1, 3, 0, 2]


def test_unread_documents_without_a_first_stage_score_keep_the_input_order() -> None:
    assert order(ranked([None, None, None], first_stage=[None, 0.1, None])) == [1, 0, 2]


def test_entropy_is_that_of_the_relevance_and_the_priors_for_an_unread_document() -> None:
    rows = ranked([outcome(0.0), outcome(3.0), None, EMPTY, failed("bad")])
    by_index = {row.document.index: row.uncertainty.entropy_nats for row in rows}
    assert by_index[0] == pytest.approx(math.log(2))
    p = 1 / (1 + math.exp(-3.0))
    assert by_index[1] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    assert (by_index[2], by_index[3], by_index[4]) == (math.log(2), 0.0, math.log(2))


def test_entropy_at_the_ends_is_zero() -> None:
    assert binary_entropy(0.0) == binary_entropy(1.0) == 0.0


def test_top_n_is_certain_after_full_evaluation() -> None:
    rows = ranked([outcome(1.0), outcome(3.0), outcome(2.0)], top_n=2)
    assert [row.uncertainty.top_n_probability for row in rows] == [1.0, 1.0, 0.0]


def test_documents_within_the_noise_of_the_cut_share_its_places() -> None:
    rows = ranked([outcome(s) for s in (9.0, 5.00, 5.02, 4.99, 1.0)], top_n=2, floor=0.02)
    # the cut is between 5.02 and 5.00; 4.99 is 0.03 below 5.02 and so cannot move up
    assert [row.uncertainty.top_n_probability for row in rows] == [1.0, 0.5, 0.5, 0.0, 0.0]
    assert [row.uncertainty.tied_with for row in rows] == [(), (1,), (2, 3), (1,), ()]


def test_equal_scores_at_the_cut_share_even_without_noise() -> None:
    rows = ranked([outcome(1.0)] * 3, top_n=1)
    assert [row.uncertainty.top_n_probability for row in rows] == pytest.approx([1 / 3] * 3)


def test_empty_and_failed_documents_reach_the_top_n_only_when_all_do() -> None:
    outcomes = [EMPTY, outcome(1.0), failed("bad")]
    assert [r.uncertainty.top_n_probability for r in ranked(outcomes, top_n=1)] == [1.0, 0.0, 0.0]
    assert [r.uncertainty.top_n_probability for r in ranked(outcomes, top_n=2)] == [1.0, 1.0, 0.0]
    assert [r.uncertainty.top_n_probability for r in ranked(outcomes)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("scored", "unread", "top_n"), [(3, 2, 2), (1, 4, 3), (4, 1, 1), (0, 3, 2), (2, 2, 3)]
)
def test_partial_evaluation_equals_counting_all_arrangements(scored: int, unread: int, top_n: int) -> None:
    total = scored + unread
    arrangements = list(itertools.combinations(range(total), scored))
    expected = [
        sum(ranks[place] < top_n for ranks in arrangements) / len(arrangements) for place in range(scored)
    ] + [top_n / total] * unread
    found = top_n_probabilities([-float(i) for i in range(scored)], unread, total, top_n, 0.0)
    assert found == pytest.approx(expected)


@given(
    scores=st.lists(st.floats(-5, 5).map(lambda x: round(x, 1)), max_size=30),
    unread=st.integers(0, 10),
    known_last=st.integers(0, 5),
    floor=st.sampled_from([0.0, 0.05, 0.1, 2.0]),
    data=st.data(),
)
def test_probabilities_sum_to_the_places_and_fall_with_rank(scores, unread, known_last, floor, data) -> None:
    scores.sort(reverse=True)
    total = len(scores) + unread + known_last
    if total == 0:
        return
    top_n = data.draw(st.integers(1, total))
    found = top_n_probabilities(scores, unread, total, top_n, floor)
    assert len(found) == total
    assert sum(found) == pytest.approx(top_n)
    assert all(0.0 <= p <= 1.0 for p in found)
    scored = found[: len(scores)]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(scored))


def test_a_large_list_neither_overflows_nor_loses_mass() -> None:
    found = top_n_probabilities([-float(i) for i in range(1000)], 1000, 2000, 100, 0.0)
    assert sum(found) == pytest.approx(100, rel=1e-9)
    assert found[0] == pytest.approx(1.0)


def test_ties_list_the_nearest_in_rank_and_no_more_than_the_limit() -> None:
    rows = ranked([outcome(1.0)] * 100)
    assert {len(row.uncertainty.tied_with) for row in rows} == {MAX_TIED}
    assert all(row.document.index not in row.uncertainty.tied_with for row in rows)
