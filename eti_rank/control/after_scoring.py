"""Top-n membership once documents are scored: what noise and unread documents leave open.

`membership` is for beliefs; this is for the plain case of policies that score a document once or not
at all, where a score is taken as it is, up to the noise floor.
"""

from collections.abc import Sequence

from scipy import stats


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
    among_best = stats.hypergeom(scored + unread, scored, top_n)
    return [float(probability) for probability in among_best.sf(range(scored))]
