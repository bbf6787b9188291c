"""From a query and documents to token ids, so that text of a user never acts as a template token.

A part with text is tokenised whole, the template's text and the user's together, because merges cross
the borders of fields and the published prompts are made so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import Encoding

from eti_rank.errors import InvalidField, ProfileError
from eti_rank.models.document_span import DocumentSpan, first_token
from eti_rank.models.profile import FIELDS, Limits, Template
from eti_rank.models.tokenization import PromptTokenizer
from eti_rank.types import Truncation

_PLACEHOLDER: Final = re.compile(f"{{({'|'.join(FIELDS)})}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One document's prompt."""

    token_ids: tuple[int, ...]
    likelihood_start: int
    """Position of the first token that holds part of the query, where the template ends with the query;
    the prompt's length where it does not, and no likelihood is read."""
    document_tokens: int
    """Tokens of the document that are in the prompt."""
    truncated_tokens: int
    """Tokens of the document that are not."""


@dataclass(frozen=True, slots=True)
class PromptFailure:
    """This document has no prompt; the others do."""

    message: str


class _Frame(NamedTuple):
    """What all prompts of one query share."""

    before: list[int]
    """Token ids of the parts before the document's."""
    left: str
    """The document's part, up to the document."""
    right: str
    """The document's part, from the document's end."""
    after: list[int]
    """Token ids of the parts after the document's."""
    scored_tokens: int
    """Tokens at the end of `after` that hold the query."""


class PromptRenderer:
    """Renders prompts of one template with one tokenizer; safe to use from several threads.

    Args:
        template: the prompt.
        limits: how long it may become.
        tokenizer_file: the model's ``tokenizer.json``.

    Raises:
        ProfileError: a part that holds text also holds a special token, or the file cannot be used.
    """

    def __init__(self, template: Template, limits: Limits, tokenizer_file: Path) -> None:
        self._template = template
        self._limits = limits
        parts = (*template.parts, template.instruction_prefix or "")
        self._tokenizer = PromptTokenizer(tokenizer_file, parts)
        for part in filter(_has_text, parts):
            if found := [token for token in sorted(self._tokenizer.reserved) if token in part]:
                raise ProfileError(
                    f"the template's part {part!r} holds both text of a user and the special token "
                    f"{found[0]!r}; give the token a part of its own"
                )

    def label_token(self, label: str) -> int:
        """The one token of a label.

        Raises:
            ProfileError: it is none or several.
        """
        return self._tokenizer.label(label)

    def render(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        max_document_tokens: int | None = None,
        truncation: Truncation = Truncation.RIGHT,
    ) -> list[Prompt | PromptFailure]:
        """One prompt or failure per document, in order.

        A template without a place for an instruction ignores it.

        Raises:
            InvalidField: the query is empty or too long, query or instruction is not text, or the two
                leave no room for a document.
        """
        self._check_query(query, instruction)
        frame = self._frame(query, instruction)
        self._check_room(frame, query, instruction)
        readable = [document for document in documents if _is_text(document)]
        encodings = iter(self._tokenizer.texts([frame.left + text + frame.right for text in readable]))
        return [
            self._one(frame, document, next(encodings), max_document_tokens, truncation)
            if _is_text(document)
            else PromptFailure(
                "the text holds a lone surrogate, which is not a character; they come in pairs"
            )
            for document in documents
        ]

    def _check_query(self, query: str, instruction: str | None) -> None:
        for name, text in (("query", query), ("instruction", instruction or "")):
            if not _is_text(text):
                raise InvalidField(f"the {name} holds a lone surrogate, which is not a character", param=name)
        tokens = len(self._tokenizer.text(query).ids)
        if not tokens:
            raise InvalidField("the query is empty", param="query")
        if tokens > self._limits.max_query_tokens:
            raise InvalidField(
                f"the query has {tokens} tokens; this model takes {self._limits.max_query_tokens}",
                param="query",
            )

    def _check_room(self, frame: _Frame, query: str, instruction: str | None) -> None:
        empty = self._tokenizer.text(frame.left + frame.right)
        if len(frame.before) + len(empty.ids) + len(frame.after) >= self._limits.max_prompt_tokens:
            raise InvalidField(
                "query and instruction leave no room for a document within the model's "
                f"{self._limits.max_prompt_tokens} tokens",
                param="instruction" if len(instruction or "") > len(query) else "query",
            )

    def _frame(self, query: str, instruction: str | None) -> _Frame:
        template = self._template
        values = {"query": query, "instruction": instruction or template.default_instruction or ""}
        prefix = (template.instruction_prefix or "") if instruction else ""
        left, right, scored = "", "", 0
        before: list[int] = []
        after: list[int] = []
        ids = before
        for own in template.parts:
            part = prefix + own if "{query}" in own else own
            scored = 0
            if not _has_text(part):
                ids += self._tokenizer.fixed(part)
            elif "{document}" in part:
                left, right = (_fill(side, values)[0] for side in part.split("{document}"))
                ids = after
            else:
                text, query_start = _fill(part, values)
                encoding = self._tokenizer.text(text)
                ids += encoding.ids
                scored = len(encoding.ids) - first_token(encoding.offsets, query_start)
        return _Frame(before, left, right, after, scored)

    def _one(
        self,
        frame: _Frame,
        document: str,
        encoding: Encoding,
        max_document_tokens: int | None,
        truncation: Truncation,
    ) -> Prompt | PromptFailure:
        span = DocumentSpan.locate(encoding.offsets, len(frame.left), len(frame.left) + len(document))
        ids = encoding.ids
        fixed_tokens = len(frame.before) + len(ids) - span.tokens + len(frame.after)
        room = self._limits.max_prompt_tokens - fixed_tokens
        limit = room if max_document_tokens is None else min(room, max_document_tokens)
        keep = min(span.tokens, limit)
        if keep < span.tokens and truncation is not Truncation.NONE:
            left = truncation is Truncation.LEFT
            border = (frame.left + document + frame.right)[span.head if left else span.tail]
            border_ids = self._tokenizer.text(border).ids
            keep = min(keep, room - len(border_ids))
            ids = (span.left_cut if left else span.right_cut)(ids, keep, border_ids)
        elif keep < span.tokens:
            return PromptFailure(
                f"the document has {span.tokens} tokens and {max(keep, 0)} fit; "
                "shorten it, or let truncation be `right` or `left`"
            )
        if span.tokens and keep < 1:
            return PromptFailure(f"query and instruction leave {max(room, 0)} tokens for this document")
        token_ids = (*frame.before, *ids, *frame.after)
        return Prompt(
            token_ids=token_ids,
            likelihood_start=len(token_ids) - frame.scored_tokens,
            document_tokens=keep,
            truncated_tokens=span.tokens - keep,
        )


def _fill(text: str, values: dict[str, str]) -> tuple[str, int]:
    """Put values in place of placeholders by position, never by formatting what a user wrote.

    Returns:
        The text, and the character where the query starts; the text's length if it holds none.
    """
    filled, query_start = "", None
    for position, piece in enumerate(_PLACEHOLDER.split(text)):
        is_field = position % 2 == 1  # `split` alternates text and captured names
        if is_field and piece == "query":
            query_start = len(filled)
        filled += values[piece] if is_field else piece
    return filled, len(filled) if query_start is None else query_start


def _has_text(part: str) -> bool:
    return _PLACEHOLDER.search(part) is not None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
