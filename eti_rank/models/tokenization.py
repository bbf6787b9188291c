"""One vocabulary read in two ways: for a template, and for text in which special tokens do not exist."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from eti_rank.errors import ProfileError


class PromptTokenizer:
    """Tokenises a template's fixed parts and the parts that hold a user's text; safe to share by threads.

    Reserved tokens are the special ones and every other added one that the template uses, such as
    Qwen3's ``<think>``. `fixed` matches them; `text` never yields one. An added token of white space
    alone (Gemma has such) is text everywhere.

    Args:
        tokenizer_file: the model's ``tokenizer.json``; its own truncation, padding and beginning-of-text
            token are not applied, because the template says what a prompt holds.
        template: the template's parts.

    Raises:
        ProfileError: the file cannot be read, or is not a byte-pair encoding.
    """

    def __init__(self, tokenizer_file: Path, template: Sequence[str]) -> None:
        raw = _load(tokenizer_file)
        raw |= {"truncation": None, "padding": None, "post_processor": None}
        for token in raw["added_tokens"]:
            content = token["content"]
            token["special"] |= not content.isspace() and any(content in part for part in template)
        self.reserved = frozenset(token["content"] for token in raw["added_tokens"] if token["special"])
        self._fixed = _build(raw, tokenizer_file)
        _forbid_merging_into(self.reserved, raw["model"])
        self._text = _build(raw, tokenizer_file)
        self._text.encode_special_tokens = True

    def fixed(self, text: str) -> list[int]:
        """Token ids of a template's own text, in which reserved tokens are meant."""
        return list(self._fixed.encode(text, add_special_tokens=False).ids)

    def text(self, text: str) -> Encoding:
        """Tokens of text in which nothing is a reserved token."""
        return self._text.encode(text, add_special_tokens=False)

    def texts(self, texts: Sequence[str]) -> list[Encoding]:
        """`text` of each, on all cores, without the interpreter's lock."""
        return list(self._text.encode_batch(texts, add_special_tokens=False))

    def label(self, label: str) -> int:
        """The one token of a label.

        Raises:
            ProfileError: it is none or several.
        """
        ids = self.fixed(label)
        if len(ids) != 1:
            raise ProfileError(f"label {label!r} is {len(ids)} tokens of this model; a label is one token")
        return ids[0]


def _load(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        kind = raw["model"]["type"]
        raw.setdefault("added_tokens", [])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"tokenizer {path} cannot be read: {error!r}") from None
    if kind != "BPE" or raw["model"].get("ignore_merges"):
        raise ProfileError(
            f"tokenizer {path} is {kind} with whole words taken from the vocabulary; only a byte-pair "
            "encoding by merges is known to keep a user's text apart from special tokens"
        )
    return dict(raw)


def _build(raw: dict[str, Any], path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(raw))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ProfileError(f"tokenizer {path} is not one: {error}") from None


def _forbid_merging_into(reserved: frozenset[str], model: dict[str, Any]) -> None:
    """Drop the merges that would spell a reserved token out of characters.

    Vocabularies made from SentencePiece hold special tokens beside words and have merges into both.
    """
    model["merges"] = [merge for merge in model["merges"] if _product(merge) not in reserved]


def _product(merge: str | list[str]) -> str:
    """What a merge makes; older files write ``"left right"``."""
    return "".join(merge.split(" ") if isinstance(merge, str) else merge)
