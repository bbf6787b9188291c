"""From outcomes to places: the order of a ranking and how sure each place is."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from eti_rank.ranking.admission import first_stage_order
from eti_rank.ranking.outcome import PRIOR_ENTROPY_NATS, Outcome, binary_entropy_nats
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
            entropy_nats=PRIOR_ENTROPY_NATS if undecided else binary_entropy_nats(outcome.relevance),
            top_n_probability=probability,
            tied_with=tied_with,
        ),
        compute=outcome.compute,
        status=outcome.status,
        truncated_tokens=outcome.truncated_tokens,
        failure=outcome.failure,
    )


def top_n_probabilities(
    raw_scores: Sequence[float], unread: int, total: int, top_n: int, noise_floor_nats: float
) -> list[float]:
    """Probability of belonging in the top n, by rank; they sum to `top_n`.

    Args:
        raw_scores: of the scored documents, best first; these hold the first ranks.
        unread: number of documents, next in rank, whose score is not known.
        total: number of documents; those after the unread ones are known to be last.
        top_n: number of places, at most `total`.
        noise_floor_nats: difference of raw scores below which an order means nothing.
    """
    contenders = len(raw_scores) + unread
    if top_n >= contenders:
        return [float(rank < top_n) for rank in range(total)]
    if unread:
        scored = _exchangeable(len(raw_scores), unread, top_n)
        probabilities = scored + [top_n / contenders] * unread
    else:
        probabilities = _shared_around_the_cut(raw_scores, top_n, noise_floor_nats)
    return probabilities + [0.0] * (total - contenders)


def _shared_around_the_cut(raw_scores: Sequence[float], top_n: int, noise_floor_nats: float) -> list[float]:
    """1 above the cut and 0 below; documents that noise could move across it share its places."""
    last_in, first_out = raw_scores[top_n - 1], raw_scores[top_n]
    inside = sum(score - first_out <= noise_floor_nats for score in raw_scores[:top_n])
    outside = sum(last_in - score <= noise_floor_nats for score in raw_scores[top_n:])
    sure = top_n - inside
    group = [inside / (inside + outside)] * (inside + outside) if inside else []
    return [1.0] * sure + group + [0.0] * (len(raw_scores) - sure - len(group))


def _exchangeable(scored: int, unread: int, top_n: int) -> list[float]:
    """Probability of the top n for each scored document, best first, when others are unread.

    Before it is read, a document is as good as any other, so the number X of scored documents among
    the best n of all is hypergeometric, and the r-th best scored one belongs there iff X >= r.
    """
    masses = [_hypergeometric(x, scored, unread, top_n) for x in range(min(scored, top_n) + 1)]
    tail = 0.0
    at_least = [0.0] * scored
    for count in range(len(masses) - 1, 0, -1):
        tail += masses[count]
        at_least[count - 1] = min(1.0, tail)
    return at_least


def _hypergeometric(successes: int, good: int, bad: int, draws: int) -> float:
    """P(X = successes) when `draws` are taken from `good` + `bad` without putting back."""
    if draws - successes > bad:
        return 0.0
    return math.exp(
        _log_choose(good, successes) + _log_choose(bad, draws - successes) - _log_choose(good + bad, draws)
    )


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


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
