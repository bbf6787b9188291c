"""From outcomes to places: the order of a ranking and how sure each place is."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from eti_rank.control.after_scoring import top_n_probabilities
from eti_rank.control.value import binary_entropy
from eti_rank.ranking.admission import first_stage_order
from eti_rank.ranking.outcome import PRIOR_ENTROPY_NATS, Outcome
from eti_rank.types import Document, RankedDocument, RerankRequest, Status, Uncertainty

MAX_TIED: Final = 32
"""Most indices that one document's `tied_with` lists: 2,000 copies of one text would list 4 million."""

NOT_READ: Final = Outcome(status=Status.OK)


def place(
    request: RerankRequest, outcomes: Mapping[int, Outcome], noise_floor_nats: float
) -> tuple[RankedDocument, ...]:
    """All documents of the request, best first.

    Scored documents come first, by raw score and then by index; then those that were not read, by
    first-stage score; then empty ones; then failed ones. A document without an outcome was not read.

    Args:
        request: the documents and `top_n`.
        outcomes: by index.
        noise_floor_nats: difference of raw scores below which an order means nothing.
    """
    order = sorted(request.documents, key=lambda d: _rank_key(d, outcomes.get(d.index)))
    found = [outcomes.get(document.index, NOT_READ) for document in order]
    raw_scores = [outcome.raw_score for outcome in found if outcome.raw_score is not None]
    probabilities = top_n_probabilities(
        raw_scores,
        unread=sum(outcome is NOT_READ for outcome in found),
        total=len(order),
        top_n=min(request.top_n or len(order), len(order)),
        noise_floor_nats=noise_floor_nats,
    )
    rows = []
    for rank, (document, outcome) in enumerate(zip(order, found, strict=True)):
        tied_ranks = _tied_ranks(raw_scores, rank, noise_floor_nats) if rank < len(raw_scores) else []
        tied_with = tuple(order[tied].index for tied in tied_ranks)
        rows.append(_row(document, outcome, probabilities[rank], tied_with))
    return tuple(rows)


def _rank_key(document: Document, outcome: Outcome | None) -> tuple[int, float, int]:
    if outcome is None:
        return (1, *first_stage_order(document))
    if outcome.raw_score is not None:
        return (0, -outcome.raw_score, document.index)
    return (2 if outcome.status is Status.EMPTY else 3, 0.0, document.index)


def _row(
    document: Document, outcome: Outcome, probability: float, tied_with: tuple[int, ...]
) -> RankedDocument:
    undecided = outcome.raw_score is None and outcome.status is not Status.EMPTY
    return RankedDocument(
        document=document,
        relevance_score=outcome.relevance,
        raw_score=outcome.raw_score,
        uncertainty=Uncertainty(
            entropy_nats=PRIOR_ENTROPY_NATS if undecided else float(binary_entropy(outcome.relevance)),
            top_n_probability=probability,
            tied_with=tied_with,
        ),
        compute=outcome.compute,
        status=outcome.status,
        truncated_tokens=outcome.truncated_tokens,
        failure=outcome.failure,
    )


def _tied_ranks(raw_scores: Sequence[float], rank: int, noise_floor_nats: float) -> list[int]:
    """Ranks of the nearest scored documents within the noise floor, in rank order."""
    above, below = rank - 1, rank + 1
    tied: list[int] = []
    while len(tied) < MAX_TIED:
        up = raw_scores[above] - raw_scores[rank] if above >= 0 else math.inf
        down = raw_scores[rank] - raw_scores[below] if below < len(raw_scores) else math.inf
        if min(up, down) > noise_floor_nats:
            break
        if up <= down:
            tied.append(above)
            above -= 1
        else:
            tied.append(below)
            below += 1
    return sorted(tied)
