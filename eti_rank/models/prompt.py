"""From a query and documents to token ids, so that text of a user never acts as a template token.

Two tokenizers work on one vocabulary: one for the template's own parts, where special tokens are
meant, and one for parts that hold a user's text, for which special tokens do not exist. A part with
text is tokenised whole, ours and the user's together, because merges cross the borders of fields and
the published prompts are made so.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Encoding, Tokenizer

from eti_rank.errors import InvalidField, ProfileError
from eti_rank.models.profile import FIELDS, Limits, Template
from eti_rank.types import Truncation

_PLACEHOLDER: Final = re.compile(f"{{({'|'.join(FIELDS)})}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One document's prompt."""

    token_ids: tuple[int, ...]
    likelihood_start: int
    """Position of the first token that holds part of the query."""
    document_tokens: int
    """Tokens of the document that are in the prompt."""
    truncated_tokens: int
    """Tokens of the document that are not."""


@dataclass(frozen=True, slots=True)
class PromptFailure:
    """This document has no prompt; the others do."""

    message: str


class _Piece(NamedTuple):
    """Text, and where each field's value stands in it, by characters."""

    text: str
    spans: dict[str, tuple[int, int]]


class PromptRenderer:
    """Renders prompts of one template with one tokenizer; safe to use from several threads.

    Args:
        template: the prompt.
        limits: how long it may become.
        tokenizer_file: the model's ``tokenizer.json``.

    Raises:
        ProfileError: a part that holds text also holds a special token, or the file cannot be read.
    """

    def __init__(self, template: Template, limits: Limits, tokenizer_file: Path) -> None:
        self._template = template
        self._limits = limits
        raw = _load(tokenizer_file)
        own = "".join(part for part in template.parts if not _PLACEHOLDER.search(part))
        for token in raw.get("added_tokens", ()):
            token["special"] = token["special"] or token["content"] in own
        self._template_tokens = Tokenizer.from_str(json.dumps(raw))
        self._text_tokens = Tokenizer.from_str(json.dumps(raw))
        self._text_tokens.encode_special_tokens = True
        special = [token["content"] for token in raw.get("added_tokens", ()) if token["special"]]
        for part in template.parts:
            if _PLACEHOLDER.search(part) and (found := [token for token in special if token in part]):
                raise ProfileError(
                    f"the template's part {part!r} holds both text of a user and the special token "
                    f"{found[0]!r}; give the token a part of its own"
                )

    def label_token(self, label: str) -> int:
        """The one token of a label.

        Raises:
            ProfileError: it is none or several.
        """
        ids = self._text_tokens.encode(label, add_special_tokens=False).ids
        if len(ids) != 1:
            raise ProfileError(f"label {label!r} is {len(ids)} tokens of this model; a label is one token")
        return int(ids[0])

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

        Raises:
            InvalidField: the query or the instruction is not text, or leaves no room for a document.
        """
        for name, text in (("query", query), ("instruction", instruction or "")):
            if not _is_text(text):
                raise InvalidField(f"the {name} holds a lone surrogate, which is not a character", param=name)
        self._check_query(query)
        readable = [document if _is_text(document) else "" for document in documents]
        prompts: list[Prompt | PromptFailure] = list(
            self._assemble(query, readable, instruction, max_document_tokens, truncation)
        )
        for position, document in enumerate(documents):
            if not _is_text(document):
                prompts[position] = PromptFailure(
                    "the text holds a lone surrogate, which is not a character; surrogates come in pairs"
                )
        return prompts

    def _check_query(self, query: str) -> None:
        tokens = len(self._text_tokens.encode(query, add_special_tokens=False).ids)
        if tokens > self._limits.max_query_tokens:
            raise InvalidField(
                f"the query has {tokens} tokens; this model takes {self._limits.max_query_tokens}",
                param="query",
            )

    def _assemble(
        self,
        query: str,
        documents: Sequence[str],
        instruction: str | None,
        max_document_tokens: int | None,
        truncation: Truncation,
    ) -> list[Prompt | PromptFailure]:
        before: list[int] = []
        after: list[int] = []
        starts: dict[str, int] = {}  # of the query, where it stands in `before` or in `after`
        varying: list[tuple[Encoding, _Piece]] = []
        for part in self._template.parts:
            fixed = after if varying else before
            if "{document}" in part:
                pieces = [self._fill(part, query, document, instruction) for document in documents]
                encodings = self._text_tokens.encode_batch(
                    [piece.text for piece in pieces], add_special_tokens=False
                )
                varying = list(zip(encodings, pieces, strict=True))
            elif _PLACEHOLDER.search(part):
                piece = self._fill(part, query, "", instruction)
                encoding = self._text_tokens.encode(piece.text, add_special_tokens=False)
                if "query" in piece.spans:
                    first, _ = _token_span(encoding, piece.spans["query"])
                    starts["after" if varying else "before"] = len(fixed) + first
                fixed.extend(encoding.ids)
            else:
                fixed.extend(self._template_tokens.encode(part, add_special_tokens=False).ids)
        return [
            self._one(before, encoding, piece, after, starts, max_document_tokens, truncation)
            for encoding, piece in varying
        ]

    def _one(  # noqa: PLR0917
        self,
        before: list[int],
        encoding: Encoding,
        piece: _Piece,
        after: list[int],
        starts: dict[str, int],
        max_document_tokens: int | None,
        truncation: Truncation,
    ) -> Prompt | PromptFailure:
        first, last = _token_span(encoding, piece.spans["document"])
        length = last - first
        room = self._limits.max_prompt_tokens - len(before) - len(after) - (len(encoding.ids) - length)
        if room < 1:
            raise InvalidField(
                f"query and instruction leave no room for a document within the model's "
                f"{self._limits.max_prompt_tokens} tokens",
                param="query",
            )
        keep = min(length, room, max_document_tokens or length)
        if keep < length and truncation is Truncation.NONE:
            return PromptFailure(
                f"the document has {length} tokens and {min(room, max_document_tokens or room)} fit; "
                "shorten it, or let truncation be `right` or `left`"
            )
        drop_from = first if truncation is Truncation.LEFT else first + keep
        drop_to = drop_from + length - keep
        middle = encoding.ids[:drop_from] + encoding.ids[drop_to:]
        return Prompt(
            token_ids=(*before, *middle, *after),
            likelihood_start=_query_start(
                len(before), len(middle), encoding, piece, starts, (drop_from, drop_to)
            ),
            document_tokens=keep,
            truncated_tokens=length - keep,
        )

    def _fill(self, part: str, query: str, document: str, instruction: str | None) -> _Piece:
        """Put values in place of placeholders by position, never by formatting what a user wrote."""
        template = self._template
        values = {
            "query": query,
            "document": document,
            "instruction": instruction or template.default_instruction or "",
        }
        if template.instruction_prefix and instruction and "{query}" in part:
            part = template.instruction_prefix + part
        text, spans, position = "", {}, 0
        for match in _PLACEHOLDER.finditer(part):
            text += part[position : match.start()]
            spans[match[1]] = (len(text), len(text) + len(values[match[1]]))
            text += values[match[1]]
            position = match.end()
        return _Piece(text + part[position:], spans)


def _query_start(  # noqa: PLR0917
    before: int,
    middle: int,
    encoding: Encoding,
    piece: _Piece,
    starts: dict[str, int],
    dropped: tuple[int, int],
) -> int:
    """Position in the prompt of the first token of the query."""
    if "before" in starts:
        return starts["before"]
    if "after" in starts:
        return before + middle + starts["after"]
    first, _ = _token_span(encoding, piece.spans["query"])
    return before + (first - (dropped[1] - dropped[0]) if first >= dropped[1] else first)


def _token_span(encoding: Encoding, span: tuple[int, int]) -> tuple[int, int]:
    """Half-open range of the tokens that hold a character of `span`; empty where it is empty."""
    start, end = span
    offsets = encoding.offsets
    first = next((n for n, (_, stop) in enumerate(offsets) if stop > start), len(offsets))
    last = next((n for n in range(len(offsets), first, -1) if offsets[n - 1][0] < end), first)
    return first, last


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _load(tokenizer_file: Path) -> dict[str, Any]:
    try:
        raw: dict[str, Any] = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"tokenizer {tokenizer_file.name}: {error}") from None
    return raw
