"""The main path: from a request to a full, valid ranking."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from eti_rank.engine.protocol import Engine
from eti_rank.models.prompt import Prompt, PromptFailure
from eti_rank.ranking.admission import Admission, admit
from eti_rank.ranking.outcome import Outcome, failed
from eti_rank.ranking.placement import place
from eti_rank.ranking.steps import StepRunner
from eti_rank.types import Document, Ranking, RerankRequest, StoppedBy

if TYPE_CHECKING:
    from eti_rank.models.reranker_model import RerankModel

RENDER_CHUNK_CHARACTERS: Final = 1 << 18
"""Characters rendered between two chances to cancel, which is some tenths of a second."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """One request on its way. `outcomes` and `prompts` fill up; a deadline may cut in at any moment."""

    request: RerankRequest
    admission: Admission
    outcomes: dict[int, Outcome]
    prompts: dict[int, Prompt] = field(default_factory=dict)
    """By document index, in the order in which to spend a budget."""


class Reranker:
    """Ranks documents with one model on one engine.

    Args:
        engine: runs the steps.
        model: renders prompts and turns log-probabilities into scores.
        max_in_flight: steps open in the engine at once, over all requests.
        max_document_bytes: UTF-8 bytes above which a document fails.
        prefix_cache: whether the engine caches prefixes.
    """

    def __init__(
        self,
        engine: Engine,
        model: "RerankModel",
        *,
        max_in_flight: int,
        max_document_bytes: int,
        prefix_cache: bool = True,
    ) -> None:
        self._engine = engine
        self._model = model
        self._max_document_bytes = max_document_bytes
        self._runner = StepRunner(engine, model, max_in_flight=max_in_flight, prefix_cache=prefix_cache)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Rank all documents of the request; cancelling cancels its open steps.

        Raises:
            InvalidField: the query or the instruction cannot be rendered.
            EngineUnavailable: the engine is down, or went down before the work was done.
        """
        started_s = time.perf_counter()
        admission = admit(request.documents, self._max_document_bytes)
        walk = _Walk(request, admission, dict(admission.outcomes))
        stopped_by = await self._read_in_time(walk)
        _share_with_duplicates(walk)
        return self._ranking(walk, stopped_by, started_s)

    async def _read_in_time(self, walk: _Walk) -> StoppedBy:
        budget = walk.request.budget
        try:
            async with asyncio.timeout(budget.max_s) as deadline:
                await self._render(walk)
                return await self._runner.run(walk.request.request_id, walk.prompts, budget, walk.outcomes)
        except TimeoutError:
            if not deadline.expired():
                raise
            return StoppedBy.DEADLINE

    async def _render(self, walk: _Walk) -> None:
        """Render the readable documents, chunk by chunk in a thread."""
        request = walk.request
        for chunk in _chunks(walk.admission.readable):
            rendered = await asyncio.to_thread(
                self._model.renderer.render,
                request.query,
                [document.full_text for document in chunk],
                instruction=request.instruction,
                max_document_tokens=request.max_tokens_per_doc,
                truncation=request.truncation,
            )
            for document, prompt in zip(chunk, rendered, strict=True):
                if isinstance(prompt, PromptFailure):
                    walk.outcomes[document.index] = failed(prompt.message)
                else:
                    walk.prompts[document.index] = prompt

    def _ranking(self, walk: _Walk, stopped_by: StoppedBy, started_s: float) -> Ranking:
        request, model = walk.request, self._model
        noise_floor_nats = max(model.noise_floor_nats, self._engine.description.noise_floor_nats)
        lengths = {index: len(prompt.token_ids) for index, prompt in walk.prompts.items()}
        copies = (lengths.get(original, 0) for original in walk.admission.originals.values())
        return Ranking(
            request_id=request.request_id,
            model=model.profile.name,
            results=place(request, walk.outcomes, noise_floor_nats),
            score_type=model.score_type,
            calibrated=model.calibrated,
            noise_floor=noise_floor_nats,
            template=model.template_id,
            stopped_by=stopped_by,
            policy=request.policy,
            utility=request.utility,
            full_tokens=sum(lengths.values()) + sum(copies),
            elapsed_s=time.perf_counter() - started_s,
        )


def _share_with_duplicates(walk: _Walk) -> None:
    for duplicate, original in walk.admission.originals.items():
        if original in walk.outcomes:
            walk.outcomes[duplicate] = walk.outcomes[original].copied()


def _chunks(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Split into runs of about RENDER_CHUNK_CHARACTERS; at least one, which may be empty.

    The empty one has the query validated where no document needs the model.
    """
    chunk: list[Document] = []
    characters = 0
    for document in documents:
        chunk.append(document)
        characters += len(document.full_text)
        if characters >= RENDER_CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk or not documents:
        yield chunk
