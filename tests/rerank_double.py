"""A small model for tests of what lies above: words are tokens, and a document may name its own score.

With `scripted_logprobs` on the scripted engine, a document that holds the word ``score=1.5`` gets
the raw score 1.5 (within [-20, 20], steps of 1e-3), one with ``score=nan`` gets NaN, and any other
gets one from a hash.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from eti_rank.engine.protocol import Labels, ScoringStep
from eti_rank.engine.scripted import Scripted, hashed_logprobs
from eti_rank.errors import InvalidField, ProfileError
from eti_rank.models.profile import Limits
from eti_rank.models.prompt import Prompt, PromptFailure
from eti_rank.settings import EngineSettings
from eti_rank.types import ScoreType, Truncation

YES, NO = 3, 4
_PREFIX, _SUFFIX = (1, 1, 1), (2,)
_FIRST_WORD, _WORDS = 100, 20_000
_SCORE_NAN, _SCORE_ZERO = 30_000, 200_000
UNREADABLE = "unrenderable"
"""A document that holds this word cannot be rendered."""
UNSUPPORTED_TOKEN = 1 << 20
"""Outside the scripted vocabulary: the engine refuses a document that holds the word ``unsupported``."""


def words(text: str) -> tuple[int, ...]:
    return tuple(_token(word) for word in text.split())


def _token(word: str) -> int:
    if word == "unsupported":
        return UNSUPPORTED_TOKEN
    if word == "score=nan":
        return _SCORE_NAN
    if word.startswith("score="):
        return _SCORE_ZERO + round(float(word.removeprefix("score=")) * 1000)
    return _FIRST_WORD + zlib.crc32(word.encode()) % _WORDS


def scripted_logprobs(step: ScoringStep) -> tuple[float, ...]:
    named = [token for token in step.token_ids if token >= _SCORE_NAN]
    if not named or not isinstance(step.readout, Labels):
        return hashed_logprobs(step)
    raw = math.nan if named[0] == _SCORE_NAN else (named[0] - _SCORE_ZERO) / 1000
    return (raw - 20.0, -20.0)


class WordRenderer:
    """Query first for labels, document first for likelihood."""

    def __init__(self, score_type: ScoreType) -> None:
        self._score_type = score_type
        self.calls: list[int] = []

    def render(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        max_document_tokens: int | None = None,
        truncation: Truncation = Truncation.RIGHT,
    ) -> list[Prompt | PromptFailure]:
        self.calls.append(len(documents))
        if len(query.split()) > 100:
            raise InvalidField("the query has more than 100 tokens", param="query")
        head = words(f"{instruction or ''} {query}")
        return [self._one(head, document, max_document_tokens, truncation) for document in documents]

    def _one(
        self, head: tuple[int, ...], document: str, limit: int | None, truncation: Truncation
    ) -> Prompt | PromptFailure:
        if UNREADABLE in document.split():
            return PromptFailure("this document cannot be rendered")
        body = words(document)
        dropped = max(0, len(body) - limit) if limit else 0
        if dropped and truncation is Truncation.NONE:
            return PromptFailure(f"the document has {len(body)} tokens; the limit is {limit}")
        kept = body[dropped:] if truncation is Truncation.LEFT else body[: len(body) - dropped]
        if self._score_type is ScoreType.LABEL:
            ids, query_at = (*_PREFIX, *head, *kept, *_SUFFIX), len(_PREFIX)
        else:
            ids, query_at = (*_PREFIX, *kept, *_SUFFIX, *head), len(_PREFIX) + len(kept) + len(_SUFFIX)
        return Prompt(
            token_ids=ids, likelihood_start=query_at, document_tokens=len(kept), truncated_tokens=dropped
        )


@dataclass
class DoubleProfile:
    name: str = "double"
    limits: Limits = field(default_factory=lambda: Limits(max_prompt_tokens=4096, max_query_tokens=100))


@dataclass
class DoubleModel:
    """Implements what `RerankModel` offers."""

    score_type: ScoreType = ScoreType.LABEL
    noise_floor_nats: float = 1e-6
    golden: list[tuple[str, str, float]] = field(default_factory=list)
    profile: DoubleProfile = field(default_factory=DoubleProfile)
    checkpoint: str = "double-checkpoint"
    label_token_ids: tuple[int, ...] = (YES, NO)
    template_id: str = "double@1"
    calibrated: bool = False
    max_prompt_tokens: int = 4096

    def __post_init__(self) -> None:
        self.renderer = WordRenderer(self.score_type)

    def raw_score(self, logprobs: Sequence[float]) -> float:
        if self.score_type is ScoreType.LABEL:
            return logprobs[0] - logprobs[1]
        return sum(logprobs) / len(logprobs)

    def relevance(self, raw: float) -> float:
        return 1 / (1 + math.exp(-raw))

    def shared_prefix_tokens(self, prompts: Sequence[Prompt]) -> int:
        if len(prompts) < 2:
            return 0
        shared = 0
        for column in zip(*(prompt.token_ids for prompt in prompts), strict=False):
            if len(set(column)) > 1:
                break
            shared += 1
        return shared

    @property
    def golden_pairs(self) -> list[tuple[str, str]]:
        return [(query, document) for query, document, _ in self.golden]

    def check_golden(self, scores: Sequence[float], *, dtype: str) -> None:
        for (_, document, expected), score in zip(self.golden, scores, strict=True):
            if abs(expected - score) > 1e-3:
                raise ProfileError(f"golden score of {document!r} is {score:.4f}, not {expected}")


def scripted_engine(token_s: float = 0.0, **settings: object) -> Scripted:
    return Scripted(
        EngineSettings(kind="scripted", **settings),
        "double-checkpoint",
        4096,
        logprobs=scripted_logprobs,
        token_s=token_s,
    )
