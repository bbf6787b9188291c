"""Where a document's tokens stand among the tokens of the text around it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """The tokens that hold characters of a document.

    A token on a border may hold characters of the template too: a full stop and the line breaks after
    it can be one token. It counts as the document's; who drops it puts the template's characters back.
    """

    first: int
    last: int
    """One past the last token."""
    head: slice
    """Characters of the template, before the document, that the first token holds."""
    tail: slice
    """Characters of the template, after the document, that the last token holds."""

    @property
    def tokens(self) -> int:
        """How many."""
        return self.last - self.first

    @classmethod
    def locate(cls, offsets: Sequence[tuple[int, int]], start: int, end: int) -> Self:
        """Find the tokens of the characters from `start` up to `end`; none if there are no characters."""
        if start == end:
            nowhere = slice(start, start)
            position = first_token(offsets, start)
            return cls(position, position, nowhere, nowhere)
        first = first_token(offsets, start)
        last = next((n for n in range(len(offsets), first, -1) if offsets[n - 1][0] < end), first)
        return cls(first, last, slice(offsets[first][0], start), slice(end, offsets[last - 1][1]))

    def right_cut(self, ids: list[int], keep: int, tail_ids: list[int]) -> list[int]:
        """Tokens without the document's end; at least one of the document is kept."""
        return ids[: self.first + keep] + tail_ids + ids[self.last :]

    def left_cut(self, ids: list[int], keep: int, head_ids: list[int]) -> list[int]:
        """Tokens without the document's beginning; at least one of the document is kept."""
        return ids[: self.first] + head_ids + ids[self.last - keep :]


def first_token(offsets: Sequence[tuple[int, int]], character: int) -> int:
    """Position of the first token that ends after a character; the number of tokens if none does."""
    return next((n for n, (_, stop) in enumerate(offsets) if stop > character), len(offsets))
