"""What became of one document, before it has a place in the ranking."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from eti_rank.control.value import binary_entropy
from eti_rank.types import Compute, Status

if TYPE_CHECKING:
    from eti_rank.engine.protocol import Evidence
    from eti_rank.models.prompt import Prompt
    from eti_rank.models.reranker_model import RerankModel

LEVEL_NONE: Final = "none"
LEVEL_FULL: Final = "full"
PRIOR_ENTROPY_NATS: Final = math.log(2)
"""Before any reading, relevant and not relevant are equally likely."""

UNREAD: Final = Compute(level=LEVEL_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for one document; `raw_score` is None unless the model gave one."""

    status: Status
    raw_score: float | None = None
    relevance: float = 0.0
    compute: Compute = UNREAD
    truncated_tokens: int = 0
    failure: str | None = None

    def copied(self) -> "Outcome":
        """The same result for a duplicate: it cost nothing and resolved nothing of its own."""
        return replace(self, compute=Compute(level=self.compute.level))


EMPTY: Final = Outcome(status=Status.EMPTY)


def failed(message: str, compute: Compute = UNREAD) -> Outcome:
    """A document that cannot be scored; `message` says what is wrong and what would be right."""
    return Outcome(status=Status.FAILED, failure=message, compute=compute)


def scored(model: "RerankModel", prompt: "Prompt", evidence: "Evidence") -> Outcome:
    """The outcome of a step that was run.

    Entropic time is the entropy of the prior (ln 2 nats) less the entropy of the posterior, the
    binary entropy of the relevance; it is floored at 0.
    """
    raw = model.raw_score(evidence.logprobs)
    if not math.isfinite(raw):
        spent = _compute(evidence, resolved_nats=0.0)
        return failed(f"the model's score is {raw}; the checkpoint or its data type may be damaged", spent)
    relevance = model.relevance(raw)
    resolved_nats = max(0.0, PRIOR_ENTROPY_NATS - float(binary_entropy(relevance)))
    return Outcome(
        status=Status.TRUNCATED if prompt.truncated_tokens else Status.OK,
        raw_score=raw,
        relevance=relevance,
        compute=_compute(evidence, resolved_nats),
        truncated_tokens=prompt.truncated_tokens,
    )


def _compute(evidence: "Evidence", resolved_nats: float) -> Compute:
    return Compute(
        level=LEVEL_FULL,
        prompt_tokens=evidence.prompt_tokens,
        cached_tokens=evidence.cached_tokens,
        entropic_time_nats=resolved_nats,
    )
