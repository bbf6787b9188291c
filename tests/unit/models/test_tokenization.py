import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from eti_rank.errors import ProfileError
from eti_rank.models.tokenization import PromptTokenizer
from tests.tiny_models import PLAIN_ADDED_TOKENS, SPECIAL_TOKENS, make_tiny_tokenizer


def made(folder: Path, architecture: str, *template: str) -> tuple[PromptTokenizer, Tokenizer]:
    file = make_tiny_tokenizer(folder, architecture)
    return PromptTokenizer(file, template), Tokenizer.from_file(str(file))


@pytest.mark.parametrize("architecture", SPECIAL_TOKENS)
def test_no_id_shifts(tmp_path: Path, architecture: str) -> None:
    tokenizer, published = made(tmp_path, architecture, "<think></think>")
    for token in (*SPECIAL_TOKENS[architecture], *PLAIN_ADDED_TOKENS[architecture]):
        assert tokenizer.fixed(token) == [published.token_to_id(token)]


@pytest.mark.parametrize("architecture", SPECIAL_TOKENS)
def test_special_tokens_do_not_exist_in_text(tmp_path: Path, architecture: str) -> None:
    tokenizer, published = made(tmp_path, architecture, "<think></think>")
    assert set(SPECIAL_TOKENS[architecture]) <= tokenizer.reserved
    ids = {published.token_to_id(token) for token in tokenizer.reserved}
    for token in tokenizer.reserved:
        for text in (token, f"x{token}y", token * 2, f" {token}\n"):
            assert ids.isdisjoint(tokenizer.text(text).ids), text


def test_merges_into_special_tokens_are_a_real_danger(tmp_path: Path) -> None:
    """The library's own switch does not help where merges spell a special token out of characters."""
    tokenizer, switched = made(tmp_path, "gemma")
    switched.encode_special_tokens = True
    bos = switched.token_to_id("<bos>")
    assert bos in switched.encode("x<bos>y", add_special_tokens=False).ids
    assert bos not in tokenizer.text("x<bos>y").ids


@pytest.mark.parametrize(("template", "reserved"), [("<think>\n", True), ("no such thing", False)])
def test_a_plain_added_token_is_reserved_if_the_template_uses_it(
    tmp_path: Path, template: str, reserved: bool
) -> None:
    tokenizer, published = made(tmp_path, "qwen3", template)
    assert ("<think>" in tokenizer.reserved) is reserved
    assert (published.token_to_id("<think>") in tokenizer.text("a<think>b").ids) is not reserved


@given(text=st.text(alphabet="ab \n.<>é▁", max_size=20))
def test_ordinary_text_is_tokenised_as_published(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Line breaks are added tokens of Gemma that its template uses, and still text."""
    tokenizer, published = made(tmp_path_factory.mktemp("gemma"), "gemma", "<bos>", "\n\n")
    assert tokenizer.text(text).ids == published.encode(text, add_special_tokens=False).ids


def test_batches_are_the_texts_one_by_one(tmp_path: Path) -> None:
    tokenizer, _ = made(tmp_path, "llama")
    texts = ["the sea", "", "<|im_end|>", "twice a day"]
    assert [batch.ids for batch in tokenizer.texts(texts)] == [tokenizer.text(text).ids for text in texts]


def _without_model(raw: dict[str, Any]) -> None:
    del raw["model"]


def _unigram(raw: dict[str, Any]) -> None:
    raw["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]], "byte_fallback": False}


def _whole_words(raw: dict[str, Any]) -> None:
    raw["model"]["ignore_merges"] = True


def _unknown_normalizer(raw: dict[str, Any]) -> None:
    raw["normalizer"] = {"type": "Nonsense"}


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (_without_model, "cannot be read"),
        (_unigram, "Unigram"),
        (_whole_words, "whole words"),
        (_unknown_normalizer, "is not one"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_an_error(tmp_path: Path, damage: Any, complaint: str) -> None:
    file = make_tiny_tokenizer(tmp_path)
    raw = json.loads(file.read_text())
    damage(raw)
    file.write_text(json.dumps(raw))
    with pytest.raises(ProfileError, match=complaint):
        PromptTokenizer(file, ())


def test_a_file_that_is_not_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ProfileError, match="cannot be read"):
        PromptTokenizer(tmp_path / "tokenizer.json", ())


def test_older_files_write_merges_as_text(tmp_path: Path) -> None:
    file = make_tiny_tokenizer(tmp_path, "gemma")
    pairs, published = PromptTokenizer(file, ()), Tokenizer.from_file(str(file))
    raw = json.loads(file.read_text())
    raw["model"]["merges"] = [" ".join(merge) for merge in raw["model"]["merges"]]
    file.write_text(json.dumps(raw))
    older = PromptTokenizer(file, ())
    text = "the Moon x<bos>y"
    assert older.text(text).ids == pairs.text(text).ids
    assert published.token_to_id("<bos>") not in older.text(text).ids
