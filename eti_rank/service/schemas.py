"""The bodies of /rerank: what is taken and what is answered.

Types are strict: "3" is no number, true is no integer, and a field that is not listed is an error.
"""

import re
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from eti_rank.types import (
    Budget,
    Document,
    Policy,
    RankedDocument,
    Ranking,
    RerankRequest,
    ScoreType,
    Status,
    StoppedBy,
    Truncation,
    Utility,
)

REQUEST_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
"""Pattern of a whole request id; ids go into logs and headers, so nothing in them can end a line."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with lone surrogates, which no encoding can hold, replaced by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DocumentIn(_In):
    """A candidate; a plain string stands for an object with that `text`."""

    text: str
    id: str | None = None
    title: str | None = None
    """Read before the text."""
    first_stage_score: float | None = None
    """Score of the search that found it; higher is better."""

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text": value}
        if not isinstance(value, dict):
            raise PydanticCustomError("document", "a document is a string, or an object with `text`")
        return value


class BudgetIn(_In):
    """Limits of what the request may spend."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Prompt tokens that are not cached."""
    max_ms: float | None = Field(default=None, gt=0)
    fraction: float | None = Field(default=None, gt=0, le=1)
    """Share of what policy `full` would spend."""


class RerankIn(_In):
    """Body of POST /rerank."""

    query: str
    documents: list[DocumentIn] = Field(min_length=1)
    top_n: int | None = Field(default=None, ge=1)
    """How many results to return; all of them if absent or above the number of documents."""
    return_documents: bool = False
    instruction: str | None = None
    """Replaces the profile's own instruction, where its template has one."""
    max_tokens_per_doc: int | None = Field(default=None, ge=1)
    truncation: Annotated[Truncation, Field(strict=False)] = Truncation.RIGHT
    budget: BudgetIn = BudgetIn()
    utility: Annotated[Utility, Field(strict=False)] = Utility.NDCG
    policy: Annotated[Policy, Field(strict=False)] = Policy.FULL
    stream: bool = False
    explain: int = 0
    request_id: str | None = Field(default=None, pattern=f"^{REQUEST_ID}$")
    """Replaces the header X-Request-Id."""

    @field_validator("query", "instruction")
    @classmethod
    def _encodable(cls, value: str | None) -> str | None:
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise PydanticCustomError(
                "surrogate",
                "holds a lone surrogate at position {position}, which is not a character",
                {"position": error.start},
            ) from None
        return value

    @field_validator("query")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise PydanticCustomError("blank", "the query is empty")
        return value

    @field_validator("stream", "explain", mode="before")
    @classmethod
    def _not_offered(cls, value: Any) -> Any:
        if value is True or (isinstance(value, int) and value > 0):
            raise PydanticCustomError("not_offered", "not available in this version; leave it out")
        return value

    def to_request(self, request_id: str) -> RerankRequest:
        """The request that the ranking understands."""
        max_ms = self.budget.max_ms
        return RerankRequest(
            request_id=request_id,
            query=self.query,
            documents=tuple(
                Document(
                    index=index,
                    text=document.text,
                    id=document.id,
                    title=document.title,
                    first_stage_score=document.first_stage_score,
                )
                for index, document in enumerate(self.documents)
            ),
            top_n=self.top_n,
            instruction=self.instruction,
            max_tokens_per_doc=self.max_tokens_per_doc,
            truncation=self.truncation,
            budget=Budget(
                max_tokens=self.budget.max_tokens,
                max_s=None if max_ms is None else max_ms / 1000,
                fraction=self.budget.fraction,
            ),
            utility=self.utility,
            policy=self.policy,
        )


class UncertaintyOut(BaseModel):
    """How sure the service is of one document."""

    entropy_nats: float
    top_n_probability: float
    tied_with: list[int]
    """Indices of the documents nearest in rank whose scores differ by less than the noise floor."""


class ComputeOut(BaseModel):
    """What one document cost; a duplicate of another document cost 0 tokens."""

    level: str
    prompt_tokens: int
    cached_tokens: int
    entropic_time_nats: float
    """ln 2, the entropy before reading, less the binary entropy of `relevance_score`; at least 0."""


class DocumentOut(BaseModel):
    """The document as given, with U+FFFD in place of lone surrogates."""

    text: str
    title: str | None


class ResultOut(BaseModel):
    """One row of the ranking."""

    index: int
    """Position in the request's `documents`."""
    id: str | None
    relevance_score: float
    """In [0, 1]; a probability if `meta.calibrated`; 0 for a document that has no score."""
    document: DocumentOut | None
    """With `return_documents`."""
    uncertainty: UncertaintyOut
    compute: ComputeOut
    status: Status
    truncated_tokens: int
    failure: str | None
    """With status `failed`: what is wrong with this document."""

    @classmethod
    def of(cls, row: RankedDocument, *, with_document: bool) -> Self:
        """From a row of a ranking."""
        document = row.document
        return cls(
            index=document.index,
            id=None if document.id is None else printable(document.id),
            relevance_score=row.relevance_score,
            document=DocumentOut(
                text=printable(document.text),
                title=None if document.title is None else printable(document.title),
            )
            if with_document
            else None,
            uncertainty=UncertaintyOut(
                entropy_nats=row.uncertainty.entropy_nats,
                top_n_probability=row.uncertainty.top_n_probability,
                tied_with=list(row.uncertainty.tied_with),
            ),
            compute=ComputeOut(
                level=row.compute.level,
                prompt_tokens=row.compute.prompt_tokens,
                cached_tokens=row.compute.cached_tokens,
                entropic_time_nats=row.compute.entropic_time_nats,
            ),
            status=row.status,
            truncated_tokens=row.truncated_tokens,
            failure=None if row.failure is None else printable(row.failure),
        )


class UsageOut(BaseModel):
    """Tokens of the request, over all documents, returned or not."""

    prompt_tokens: int
    cached_tokens: int
    uncached_tokens: int
    """What was really computed."""
    full_tokens: int
    """Prompt tokens of every rendered document at full length, with no cache and no duplicate spared."""
    total_tokens: int


class BilledUnitsOut(BaseModel):
    """One request is one search unit."""

    search_units: int = 1


class MetaOut(BaseModel):
    """How the ranking came about."""

    stopped_by: StoppedBy
    policy: Policy
    utility: Utility
    entropic_time_nats: float
    efficiency: float
    """Entropic time per thousand uncached tokens."""
    score_type: ScoreType
    calibrated: bool
    noise_floor: float
    """Difference of raw scores, in nats, below which an order means nothing."""
    template: str
    failed: int
    """Documents with status `failed`, returned or not."""
    billed_units: BilledUnitsOut = BilledUnitsOut()


class RerankOut(BaseModel):
    """Answer of POST /rerank; `results` in rank order."""

    id: str
    model: str
    results: list[ResultOut]
    usage: UsageOut
    meta: MetaOut

    @classmethod
    def of(cls, ranking: Ranking, *, top_n: int | None, return_documents: bool) -> Self:
        """From a ranking; `top_n` cuts the results and nothing else."""
        uncached_tokens = ranking.prompt_tokens - ranking.cached_tokens
        return cls(
            id=ranking.request_id,
            model=ranking.model,
            results=[ResultOut.of(row, with_document=return_documents) for row in ranking.results[:top_n]],
            usage=UsageOut(
                prompt_tokens=ranking.prompt_tokens,
                cached_tokens=ranking.cached_tokens,
                uncached_tokens=uncached_tokens,
                full_tokens=ranking.full_tokens,
                total_tokens=ranking.prompt_tokens,
            ),
            meta=MetaOut(
                stopped_by=ranking.stopped_by,
                policy=ranking.policy,
                utility=ranking.utility,
                entropic_time_nats=ranking.entropic_time_nats,
                efficiency=ranking.efficiency,
                score_type=ranking.score_type,
                calibrated=ranking.calibrated,
                noise_floor=ranking.noise_floor,
                template=ranking.template,
                failed=sum(row.status is Status.FAILED for row in ranking.results),
            ),
        )


class ErrorBody(BaseModel):
    """What went wrong."""

    type: str
    message: str
    param: str | None
    """Dotted path of the field at fault."""
    request_id: str


class ErrorOut(BaseModel):
    """Every answer that is not a success."""

    error: ErrorBody
