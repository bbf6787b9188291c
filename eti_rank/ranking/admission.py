"""Which documents of a request the model can read at all, and which need no reading."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eti_rank.ranking.outcome import EMPTY, Outcome, failed
from eti_rank.types import Document


@dataclass(frozen=True, slots=True)
class Admission:
    """Documents by what happens to them; every index is in exactly one of the three."""

    outcomes: Mapping[int, Outcome]
    """Known without the model: empty, or unreadable."""
    readable: tuple[Document, ...]
    """To be read, in the order in which to spend a budget on them."""
    originals: Mapping[int, int]
    """Duplicate -> index of the readable document with the same title and text."""


def admit(documents: Iterable[Document], max_document_bytes: int) -> Admission:
    """Sort documents into known, readable and duplicate.

    The best of the first stage are read first; without a first-stage score, the input order counts.
    """
    outcomes: dict[int, Outcome] = {}
    originals: dict[int, int] = {}
    readable: dict[str, Document] = {}
    for document in documents:
        text = document.full_text
        if problem := _problem(document, max_document_bytes):
            outcomes[document.index] = failed(problem)
        elif original := readable.get(text):
            originals[document.index] = original.index
        elif not text.strip():
            outcomes[document.index] = EMPTY
        else:
            readable[text] = document
    return Admission(outcomes, tuple(sorted(readable.values(), key=first_stage_order)), originals)


def first_stage_order(document: Document) -> tuple[float, int]:
    """Sort key: first-stage score, best first, absent ones last; ties by index."""
    score = document.first_stage_score
    return (float("inf") if score is None else -score, document.index)


def _problem(document: Document, max_document_bytes: int) -> str | None:
    """Why no model can read this document; None if one can."""
    for name in ("text", "title", "id"):
        try:
            (getattr(document, name) or "").encode()
        except UnicodeEncodeError as error:
            return (
                f"`{name}` holds a lone surrogate at position {error.start}, which is not a character; "
                "surrogates come in pairs (it is shown as U+FFFD)"
            )
    size_bytes = len(document.full_text.encode())
    if size_bytes > max_document_bytes:
        return f"the document has {size_bytes} bytes of UTF-8; the limit is {max_document_bytes}"
    return None
