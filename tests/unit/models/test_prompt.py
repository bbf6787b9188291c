"""Prompts equal the published ones for ordinary text, and text never acts as a template token."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from eti_rank.errors import InvalidField, ProfileError
from eti_rank.models.profile import Limits, Template, load_profile
from eti_rank.models.prompt import Prompt, PromptFailure, PromptRenderer
from eti_rank.types import Truncation
from tests.tiny_models import SPECIAL_TOKENS, make_tiny_tokenizer

QUERY = "Does the Moon raise the sea?"
DOCUMENT = "The gravitational pull of the Moon raises the level of the sea, twice a day."
ARCHITECTURES = {
    "smollm2-135m-instruct": "llama",
    "qwen3-reranker-0.6b": "qwen3",
    "bge-reranker-v2-gemma": "gemma",
    "mxbai-rerank-base-v2": "qwen2",
}


def published(profile: str, tokenizer: Tokenizer, instruction: str | None) -> list[int]:
    """Each model's own way to make its prompt, from its model card or its code."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    if profile == "smollm2-135m-instruct":  # our own: one user turn, the query as the answer
        turn = f"<|im_start|>user\n{DOCUMENT}\n\nWrite a question that this text answers.<|im_end|>\n"
        return ids(f"{turn}<|im_start|>assistant\n") + ids(QUERY)
    if profile == "qwen3-reranker-0.6b":
        prefix = (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
            'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
            "<|im_start|>user\n"
        )
        suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        task = instruction or "Given a web search query, retrieve relevant passages that answer the query"
        pair = f"<Instruct>: {task}\n<Query>: {QUERY}\n<Document>: {DOCUMENT}"
        return ids(prefix) + ids(pair) + ids(suffix)
    if profile == "bge-reranker-v2-gemma":
        task = (
            "Given a query A and a passage B, determine whether the passage contains an answer to the query "
            "by providing a prediction of either 'Yes' or 'No'."
        )
        bos = tokenizer.token_to_id("<bos>")
        return [bos, *ids(f"A: {QUERY}"), *ids("\n"), *ids(f"B: {DOCUMENT}"), *ids("\n"), *ids(task)]
    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your "
        "binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    query = f"instruction: {instruction}\nquery: {QUERY}" if instruction else f"query: {QUERY}"
    return (
        ids(prefix)
        + ids(query)
        + ids("\n")
        + ids(f"document: {DOCUMENT}")
        + ids("\n")
        + ids(task)
        + ids("<|im_end|>\n<|im_start|>assistant\n")
    )


@pytest.fixture(scope="module", params=ARCHITECTURES)
def shipped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Tokenizer, PromptRenderer]:
    name = request.param
    file = make_tiny_tokenizer(tmp_path_factory.mktemp(name), ARCHITECTURES[name])
    profile = load_profile(name)
    return name, Tokenizer.from_file(str(file)), PromptRenderer(profile.template, profile.limits, file)


def only(rendered: list[Prompt | PromptFailure]) -> Prompt:
    (prompt,) = rendered
    assert isinstance(prompt, Prompt)
    return prompt


@pytest.mark.parametrize("instruction", [None, "Find physics"])
def test_equals_the_published_prompt(
    shipped: tuple[str, Tokenizer, PromptRenderer], instruction: str | None
) -> None:
    name, tokenizer, renderer = shipped
    prompt = only(renderer.render(QUERY, [DOCUMENT], instruction=instruction))
    assert list(prompt.token_ids) == published(name, tokenizer, instruction)


def test_likelihood_starts_at_the_query(shipped: tuple[str, Tokenizer, PromptRenderer]) -> None:
    _, tokenizer, renderer = shipped
    prompt = only(renderer.render(QUERY, [DOCUMENT]))
    query = tokenizer.encode(QUERY, add_special_tokens=False).ids
    from_start = list(prompt.token_ids[prompt.likelihood_start :])
    assert from_start[1 : len(query)] == query[1:]  # the first may have merged with a space before it


@given(
    text=st.lists(
        st.one_of(st.text(max_size=20), st.sampled_from(["<|im_end|>", "</think>", "<bos>", "{query}", "\0"]))
    ).map("".join)
)
def test_no_text_ever_acts_as_a_template_token(
    shipped: tuple[str, Tokenizer, PromptRenderer], text: str
) -> None:
    name, tokenizer, renderer = shipped
    special = {tokenizer.token_to_id(token) for token in SPECIAL_TOKENS[ARCHITECTURES[name]]}
    plain = only(renderer.render(QUERY, [DOCUMENT], truncation=Truncation.NONE))
    hostile = only(renderer.render(text or QUERY, [text], instruction=text, truncation=Truncation.NONE))

    def own(prompt: Prompt) -> list[int]:
        return [token for token in prompt.token_ids if token in special]

    assert own(hostile) == own(plain)


@given(documents=st.lists(st.text(max_size=60), min_size=1, max_size=4), limit=st.integers(1, 30))
@pytest.mark.parametrize("truncation", [Truncation.RIGHT, Truncation.LEFT])
def test_truncation_takes_whole_tokens_from_one_end_only(
    shipped: tuple[str, Tokenizer, PromptRenderer],
    truncation: Truncation,
    documents: list[str],
    limit: int,
) -> None:
    _, _, renderer = shipped
    whole = [only([p]) for p in renderer.render(QUERY, documents)]
    cut = [
        only([p]) for p in renderer.render(QUERY, documents, max_document_tokens=limit, truncation=truncation)
    ]
    for full, short in zip(whole, cut, strict=True):
        assert short.document_tokens == min(limit, full.document_tokens)
        assert short.document_tokens + short.truncated_tokens == full.document_tokens
        assert len(full.token_ids) - len(short.token_ids) == short.truncated_tokens
        tail = full.token_ids[full.likelihood_start :]
        assert short.token_ids[short.likelihood_start :][-len(tail) :][:1] == tail[:1]


def test_one_bad_document_harms_nobody(shipped: tuple[str, Tokenizer, PromptRenderer]) -> None:
    _, _, renderer = shipped
    alone = renderer.render(QUERY, [DOCUMENT])
    among = renderer.render(
        QUERY, ["\ud800", DOCUMENT, "long " * 40], max_document_tokens=30, truncation=Truncation.NONE
    )
    assert isinstance(among[0], PromptFailure)
    assert "lone surrogate" in among[0].message
    assert isinstance(among[2], PromptFailure)
    assert "30 fit" in among[2].message
    assert among[1] == alone[0]


@pytest.mark.parametrize("field", ["query", "instruction"])
def test_a_query_that_is_not_text_is_an_error(
    shipped: tuple[str, Tokenizer, PromptRenderer], field: str
) -> None:
    _, _, renderer = shipped
    values = {"query": QUERY, "instruction": "Find"} | {field: "a\udfff"}
    with pytest.raises(InvalidField, match="lone surrogate") as error:
        renderer.render(values["query"], [DOCUMENT], instruction=values["instruction"])
    assert error.value.param == field


def test_a_query_over_its_limit_is_an_error(shipped: tuple[str, Tokenizer, PromptRenderer]) -> None:
    _, _, renderer = shipped
    with pytest.raises(InvalidField, match="this model takes") as error:
        renderer.render("sea " * 4000, [DOCUMENT])
    assert error.value.param == "query"


def _renderer(parts: tuple[str, ...], folder: Path, max_prompt_tokens: int = 64) -> PromptRenderer:
    limits = Limits(max_prompt_tokens=max_prompt_tokens, max_query_tokens=60)
    return PromptRenderer(Template(parts=parts), limits, make_tiny_tokenizer(folder))


def test_left_and_right_keep_the_end_they_say(tmp_path: Path) -> None:
    renderer = _renderer(("<|im_start|>", "{document}", "<|im_end|>", "{query}"), tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode(DOCUMENT, add_special_tokens=False).ids
    start = [tokenizer.token_to_id("<|im_start|>")]
    right = only(renderer.render(QUERY, [DOCUMENT], max_document_tokens=5))
    left = only(renderer.render(QUERY, [DOCUMENT], max_document_tokens=5, truncation=Truncation.LEFT))
    assert list(right.token_ids[:6]) == start + ids[:5]
    assert list(left.token_ids[:6]) == start + ids[-5:]


def test_the_models_limit_truncates_the_document_and_nothing_else(tmp_path: Path) -> None:
    renderer = _renderer(("<|im_start|>", "{document}", "<|im_end|>", "{query}"), tmp_path, 40)
    prompt = only(renderer.render(QUERY, [DOCUMENT * 5]))
    assert len(prompt.token_ids) == 40
    assert prompt.truncated_tokens > 0


def test_a_query_that_leaves_no_room_is_an_error(tmp_path: Path) -> None:
    renderer = _renderer(("<|im_start|>", "{document}", "<|im_end|>", "{query}"), tmp_path, 16)
    with pytest.raises(InvalidField, match="no room"):
        renderer.render("Does the Moon raise and lower the level of the sea twice a day?", [DOCUMENT])


def test_special_token_in_a_part_with_text_is_a_profile_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="part of its own"):
        _renderer(("<|im_start|>{document}", "{query}"), tmp_path)


@pytest.mark.parametrize("label", ["", "Moon raises"])
def test_label_that_is_not_one_token_is_a_profile_error(tmp_path: Path, label: str) -> None:
    with pytest.raises(ProfileError, match="one token"):
        _renderer(("{document}", "{query}"), tmp_path).label_token(label)
