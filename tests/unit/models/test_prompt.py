"""Prompts equal the published ones for ordinary text, and text never acts as a template token."""

import functools
import json
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from eti_rank.errors import InvalidField, ProfileError
from eti_rank.models.profile import Limits, Profile, Template, load_profile
from eti_rank.models.prompt import Prompt, PromptFailure, PromptRenderer
from eti_rank.types import Truncation
from tests.tiny_models import PLAIN_ADDED_TOKENS, SPECIAL_TOKENS, make_tiny_tokenizer
from tests.unit.models.published_prompts import ARCHITECTURES, published
from tests.unit.models.token_bytes import bytes_of

QUERY = "Does the Moon raise the sea?"
DOCUMENT = "The gravitational pull of the Moon raises the level of the sea, twice a day."
HOSTILE = (
    *(token for tokens in (*SPECIAL_TOKENS.values(), *PLAIN_ADDED_TOKENS.values()) for token in tokens),
    "{query}",
    "{document}",
    "{instruction}",
    "{",
    "}",
    "\0",
    "\n",
    "  ",
    "\u0301",
    "é",
    "🙂",
)
texts = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(HOSTILE)), max_size=8).map("".join)


class Shipped(NamedTuple):
    profile: Profile
    architecture: str
    tokenizer: Tokenizer
    renderer: PromptRenderer

    def normalised(self, text: str) -> bytes:
        """What the tokenizer keeps of a text."""
        if self.architecture == "gemma":
            return text.replace(" ", "▁").replace("▁", " ").encode()
        return (unicodedata.normalize("NFC", text) if "qwen" in self.architecture else text).encode()

    def parts(self, query: str, document: str, instruction: str | None) -> list[bytes]:
        """The template with values in it, made without the renderer."""
        template = self.profile.template
        made = []
        for part in template.parts:
            prefix = template.instruction_prefix if instruction and "{query}" in part else None
            pieces = ((prefix or "") + part).replace("{query}", "\ue000").replace("{document}", "\ue001")
            pieces = pieces.replace("{instruction}", "\ue002")
            values = {
                "\ue000": query,
                "\ue001": document,
                "\ue002": instruction or template.default_instruction or "",
            }
            made.append(self.normalised("".join(values.get(character, character) for character in pieces)))
        return made


@pytest.fixture(scope="module", params=ARCHITECTURES)
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    name = request.param
    architecture = ARCHITECTURES[name]
    file = make_tiny_tokenizer(tmp_path_factory.mktemp(name), architecture)
    profile = load_profile(name)
    renderer = PromptRenderer(profile.template, profile.limits, file)
    return Shipped(profile, architecture, Tokenizer.from_file(str(file)), renderer)


def only(rendered: list[Prompt | PromptFailure]) -> Prompt:
    (prompt,) = rendered
    assert isinstance(prompt, Prompt)
    return prompt


@pytest.mark.parametrize("instruction", [None, "Find physics"])
def test_equals_the_published_prompt(shipped: Shipped, instruction: str | None) -> None:
    prompt = only(shipped.renderer.render(QUERY, [DOCUMENT], instruction=instruction))
    expected = published(shipped.profile.name, shipped.tokenizer, QUERY, DOCUMENT, instruction)
    assert list(prompt.token_ids) == expected


@pytest.mark.parametrize("document", ["two\n\nlines\n", " spaced", "\n", "1990 1991", ""])
def test_equals_the_published_prompt_for_white_space_and_digits(shipped: Shipped, document: str) -> None:
    prompt = only(shipped.renderer.render(QUERY, [document]))
    assert list(prompt.token_ids) == published(shipped.profile.name, shipped.tokenizer, QUERY, document, None)


def test_the_published_cut_is_the_documents_end(shipped: Shipped) -> None:
    """Where the document ends its part, the published code cuts that part's tokens at the end."""
    whole = only(shipped.renderer.render(QUERY, [DOCUMENT]))
    cut = only(shipped.renderer.render(QUERY, [DOCUMENT], max_document_tokens=5))
    common = next(n for n, (a, b) in enumerate(zip(whole.token_ids, cut.token_ids, strict=False)) if a != b)
    assert list(cut.token_ids[common:]) == list(whole.token_ids[common + cut.truncated_tokens :])


def test_likelihood_starts_at_the_query(shipped: Shipped) -> None:
    prompt = only(shipped.renderer.render(QUERY, [DOCUMENT]))
    query = shipped.tokenizer.encode(QUERY, add_special_tokens=False).ids
    scored = list(prompt.token_ids[prompt.likelihood_start :])
    assert scored == (query if shipped.profile.scorer == "likelihood" else [])


@given(query=texts.filter(bool), document=texts, instruction=st.none() | texts)
def test_no_text_ever_acts_as_a_template_token(
    shipped: Shipped, query: str, document: str, instruction: str | None
) -> None:
    _, architecture, tokenizer, renderer = shipped
    template = "".join(shipped.profile.template.parts)
    reserved = {*SPECIAL_TOKENS[architecture]} | {
        token for token in PLAIN_ADDED_TOKENS[architecture] if token in template and not token.isspace()
    }
    ids = {tokenizer.token_to_id(token) for token in reserved}
    prompt = only(renderer.render(query, [document], instruction=instruction))
    plain = only(renderer.render(QUERY, [DOCUMENT]))

    assert [i for i in prompt.token_ids if i in ids] == [i for i in plain.token_ids if i in ids]
    assert bytes_of(tokenizer, prompt.token_ids) == b"".join(shipped.parts(query, document, instruction))


@given(document=texts, limit=st.integers(1, 12), query=texts.filter(bool))
@pytest.mark.parametrize("truncation", [Truncation.RIGHT, Truncation.LEFT])
def test_truncation_keeps_the_template_and_one_end_of_the_document(
    shipped: Shipped, truncation: Truncation, document: str, limit: int, query: str
) -> None:
    _, _, tokenizer, renderer = shipped
    full = only(renderer.render(query, [document]))
    cut = only(renderer.render(query, [document], max_document_tokens=limit, truncation=truncation))
    assert cut.document_tokens == min(limit, full.document_tokens)
    assert cut.document_tokens + cut.truncated_tokens == full.document_tokens
    assert _frames(shipped, bytes_of(tokenizer, cut.token_ids), query, document, truncation)


def _frames(shipped: Shipped, made: bytes, query: str, document: str, truncation: Truncation) -> bool:
    """Whether `made` is the template around one end of the document."""
    mark = "\ue00f"
    left, right = b"".join(shipped.parts(query, mark, None)).split(mark.encode())
    if not (made.startswith(left) and made.endswith(right) and len(made) >= len(left) + len(right)):
        return False
    kept, whole = made[len(left) : len(made) - len(right)], shipped.normalised(document)
    return whole.startswith(kept) if truncation is Truncation.RIGHT else whole.endswith(kept)


def test_one_bad_document_harms_nobody(shipped: Shipped) -> None:
    alone = shipped.renderer.render(QUERY, [DOCUMENT])
    among = shipped.renderer.render(
        QUERY, ["\ud800", DOCUMENT, "long " * 90], max_document_tokens=80, truncation=Truncation.NONE
    )
    assert isinstance(among[0], PromptFailure)
    assert "lone surrogate" in among[0].message
    assert isinstance(among[2], PromptFailure)
    assert "80 fit" in among[2].message
    assert among[1] == alone[0]


def test_threads_share_a_renderer(shipped: Shipped) -> None:
    documents = [f"{DOCUMENT} {n}" for n in range(40)]
    alone = shipped.renderer.render(QUERY, documents)
    with ThreadPoolExecutor(4) as pool:
        assert all(made == alone for made in pool.map(shipped.renderer.render, [QUERY] * 8, [documents] * 8))


@pytest.mark.parametrize("field", ["query", "instruction"])
def test_a_query_that_is_not_text_is_an_error(shipped: Shipped, field: str) -> None:
    values = {"query": QUERY, "instruction": "Find"} | {field: "a\udfff"}
    with pytest.raises(InvalidField, match="lone surrogate") as error:
        shipped.renderer.render(values["query"], [DOCUMENT], instruction=values["instruction"])
    assert error.value.param == field


@pytest.mark.parametrize(("query", "complaint"), [("sea " * 9000, "this model takes"), ("", "empty")])
def test_a_query_that_is_empty_or_over_its_limit_is_an_error(
    shipped: Shipped, query: str, complaint: str
) -> None:
    with pytest.raises(InvalidField, match=complaint) as error:
        shipped.renderer.render(query, [DOCUMENT])
    assert error.value.param == "query"


class Small(NamedTuple):
    renderer: PromptRenderer
    tokenizer: Tokenizer

    @classmethod
    def made(cls, folder: Path, *parts: str, max_prompt_tokens: int = 64, **template: str) -> "Small":
        file = make_tiny_tokenizer(folder, "qwen3")
        limits = Limits(max_prompt_tokens=max_prompt_tokens, max_query_tokens=max_prompt_tokens - 1)
        made = PromptRenderer(Template.model_validate({"parts": parts} | template), limits, file)
        return cls(made, Tokenizer.from_file(str(file)))

    def tokens(self, prompt: Prompt) -> list[str]:
        return [str(self.tokenizer.id_to_token(token)) for token in prompt.token_ids]


def test_left_and_right_keep_the_end_they_say(tmp_path: Path) -> None:
    small = Small.made(tmp_path, "<|im_start|>", "{document}", "<|im_end|>", "{query}")
    ids = small.tokenizer.encode(DOCUMENT).ids
    limit = {"max_document_tokens": 5}
    right = only(small.renderer.render(QUERY, [DOCUMENT], truncation=Truncation.RIGHT, **limit))
    left = only(small.renderer.render(QUERY, [DOCUMENT], truncation=Truncation.LEFT, **limit))
    assert list(right.token_ids[1:6]) == ids[:5]
    assert list(left.token_ids[1:6]) == ids[-5:]
    assert right.truncated_tokens == left.truncated_tokens == len(ids) - 5


def test_a_token_across_the_border_leaves_the_templates_share_behind(tmp_path: Path) -> None:
    """``.\\n\\n`` is one token of the document's full stop and the template's blank line."""
    small = Small.made(tmp_path, "the {document}\n\nyes", "<|im_end|>", "{query}")
    document = "Moon raises twice a day."
    (whole,), (right,), (left,) = (
        small.renderer.render(QUERY, [document], max_document_tokens=limit, truncation=truncation)
        for limit, truncation in ((None, Truncation.RIGHT), (2, Truncation.RIGHT), (2, Truncation.LEFT))
    )
    assert small.tokens(only([whole]))[1:8] == ["ĠMoon", "Ġraises", "Ġtwice", "Ġa", "Ġday", ".ĊĊ", "yes"]
    assert small.tokens(only([right]))[:6] == ["the", "ĠMoon", "Ġraises", "ĊĊ", "yes", "<|im_end|>"]
    assert small.tokens(only([left]))[:6] == ["the", "Ġ", "Ġday", ".ĊĊ", "yes", "<|im_end|>"]


@pytest.fixture(scope="module")
def bordered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Small]:
    """By limit: the document in the middle of a part, so that tokens can cross both of its borders."""
    parts = ("<|im_start|>", "Text: {document}\n\nQuestion: {query}", "<|im_end|>")
    return functools.cache(
        lambda limit: Small.made(tmp_path_factory.mktemp("bordered"), *parts, max_prompt_tokens=limit)
    )


@given(document=texts, limit=st.integers(40, 60), left=st.booleans())
def test_no_prompt_is_longer_than_the_model_reads(
    bordered: Callable[[int], Small], document: str, limit: int, left: bool
) -> None:
    small = bordered(limit)
    truncation = Truncation.LEFT if left else Truncation.RIGHT
    (prompt,) = small.renderer.render("the sea", [document * 4], truncation=truncation)
    if isinstance(prompt, Prompt):
        assert len(prompt.token_ids) <= limit
        assert bytes_of(small.tokenizer, prompt.token_ids).endswith(b"\n\nQuestion: the sea<|im_end|>")
        assert prompt.truncated_tokens == 0 or len(prompt.token_ids) > limit - 3
    else:
        assert limit < 43  # a border's tokens took the last places


@pytest.mark.parametrize(
    ("query", "instruction", "param"), [("sea " * 36, "go", "query"), ("sea", "go " * 70, "instruction")]
)
def test_text_that_leaves_no_room_is_an_error(
    tmp_path: Path, query: str, instruction: str, param: str
) -> None:
    parts = ("<|im_start|>", "{instruction}: {document}", "<|im_end|>", "{query}")
    small = Small.made(tmp_path, *parts, max_prompt_tokens=42, default_instruction="x")
    with pytest.raises(InvalidField, match="no room") as error:
        small.renderer.render(query, [DOCUMENT], instruction=instruction)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("parts", "token"),
    [
        (("<|im_start|>{document}", "{query}"), "<|im_start|>"),
        (("{document}", "<think>{query}"), "<think>"),
    ],
)
def test_special_token_in_a_part_with_text_is_a_profile_error(
    tmp_path: Path, parts: tuple[str, ...], token: str
) -> None:
    with pytest.raises(ProfileError, match=f"{token!r}; give the token a part of its own"):
        Small.made(tmp_path, *parts)


@pytest.mark.parametrize("label", ["", "Moon raises"])
def test_label_that_is_not_one_token_is_a_profile_error(tmp_path: Path, label: str) -> None:
    with pytest.raises(ProfileError, match="one token"):
        Small.made(tmp_path, "{document}", "{query}").renderer.label_token(label)


def test_a_tokenizers_own_truncation_and_padding_are_not_applied(tmp_path: Path) -> None:
    plain = Small.made(tmp_path, "{document}", "{query}")
    file = tmp_path / "tokenizer.json"
    raw = json.loads(file.read_text())
    raw["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    raw["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    file.write_text(json.dumps(raw))
    limits = Limits(max_prompt_tokens=64, max_query_tokens=60)
    renderer = PromptRenderer(Template(parts=("{document}", "{query}")), limits, file)
    assert renderer.render(QUERY, [DOCUMENT, "sea"]) == plain.renderer.render(QUERY, [DOCUMENT, "sea"])
