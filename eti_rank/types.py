"""The nouns of reranking: frozen, with units, importing nobody.

`index` is always a position in the caller's list of documents. Scores are higher for better.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Policy(StrEnum):
    """How compute is spread over the documents of a request."""

    FULL = "full"
    """Every document, once, at full length."""


class Utility(StrEnum):
    """What the expected gain of evaluating a document is measured in."""

    NDCG = "ndcg"
    TOP_K = "top_k"
    ENTROPY = "entropy"


class Truncation(StrEnum):
    """What happens to a document above the token limit."""

    RIGHT = "right"
    """Its end is dropped."""
    LEFT = "left"
    """Its beginning is dropped."""
    NONE = "none"
    """It fails, and says so; the others are ranked."""


class Status(StrEnum):
    """How a document fared."""

    OK = "ok"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    FAILED = "failed"


class StoppedBy(StrEnum):
    """Why a request stopped."""

    COMPLETE = "complete"
    """Everything that the policy asks for was evaluated."""
    DEADLINE = "deadline"
    """`Budget.max_s` had passed."""
    BUDGET = "budget"
    """`Budget.max_tokens` or `Budget.fraction` was spent."""


class ScoreType(StrEnum):
    """What a raw score is, before calibration."""

    LABEL = "label"
    """Log-odds of the positive label at the last position, in nats."""
    LIKELIHOOD = "likelihood"
    """Mean log-probability per token of the query, given the document, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One candidate as the caller gave it."""

    index: int
    text: str
    id: str | None = None
    title: str | None = None
    first_stage_score: float | None = None

    @property
    def full_text(self) -> str:
        """Title and text as the model reads them (BEIR's convention: joined by a space)."""
        return f"{self.title} {self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of what one request may spend; an absent one does not limit."""

    max_tokens: int | None = None
    """Uncached prompt tokens."""
    max_s: float | None = None
    """Seconds from admission."""
    fraction: float | None = None
    """Share, in (0, 1], of the uncached tokens that policy `full` would spend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest:
    """What a caller asks for, validated."""

    request_id: str
    query: str
    documents: tuple[Document, ...]
    top_n: int | None = None
    """How many results to return; None returns all."""
    instruction: str | None = None
    max_tokens_per_doc: int | None = None
    truncation: Truncation = Truncation.RIGHT
    budget: Budget = field(default_factory=Budget)
    utility: Utility = Utility.NDCG
    policy: Policy = Policy.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """How sure the service is of one document."""

    entropy_nats: float
    """Binary entropy of `relevance_score`; that of the prior, ln 2, if the document was left unread."""
    top_n_probability: float
    """Probability that the document belongs in the top n."""
    tied_with: tuple[int, ...] = ()
    """Indices of the documents nearest in rank whose raw scores lie within the noise floor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """What one document cost."""

    level: str
    """The deepest level evaluated: `none` if the model never saw the document."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of `prompt_tokens` that the radix cache already held."""
    entropic_time_nats: float = 0.0
    """Entropy resolved by evaluating this document."""

    @property
    def uncached_tokens(self) -> int:
        """Tokens that were really computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDocument:
    """One row of a ranking."""

    document: Document
    relevance_score: float
    """In [0, 1]; a calibrated probability when `Ranking.calibrated`."""
    raw_score: float | None
    """In nats, of the kind `Ranking.score_type`; None if the model never saw the document."""
    uncertainty: Uncertainty
    compute: Compute
    status: Status
    truncated_tokens: int = 0
    failure: str | None = None
    """For `Status.FAILED`: what is wrong and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The answer to one request: always full and valid, best first."""

    request_id: str
    model: str
    results: tuple[RankedDocument, ...]
    """All documents in rank order; `top_n` is applied by whoever presents them."""
    score_type: ScoreType
    calibrated: bool
    noise_floor: float
    """Difference of raw scores, in nats, below which an order means nothing."""
    template: str
    """Name and hash of the prompt template."""
    stopped_by: StoppedBy
    policy: Policy
    utility: Utility
    full_tokens: int
    """Prompt tokens of every rendered document at full length, each duplicate and cached token counted."""
    elapsed_s: float

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all steps, cached ones included."""
        return sum(r.compute.prompt_tokens for r in self.results)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the radix cache already held."""
        return sum(r.compute.cached_tokens for r in self.results)

    @property
    def entropic_time_nats(self) -> float:
        """Entropy resolved by the whole request."""
        return sum(r.compute.entropic_time_nats for r in self.results)

    @property
    def efficiency(self) -> float:
        """Entropic time per thousand uncached tokens (nats); 0 when nothing was computed."""
        uncached = self.prompt_tokens - self.cached_tokens
        return 1000 * self.entropic_time_nats / uncached if uncached else 0.0
