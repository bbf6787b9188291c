"""A profile's score is the published one: from a plain forward pass of the published prompt."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from eti_rank.models.prompt import Prompt
from eti_rank.models.reranker_model import RerankModel, prepare_model
from eti_rank.settings import ModelSettings
from tests.unit.models.published_prompts import ARCHITECTURES, published

QUERY = "Does the Moon raise the sea?"
DOCUMENTS = ("The gravitational pull of the Moon raises the level of the sea.", "Write a question.\n")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def prepared(
    request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]
) -> tuple[RerankModel, Tokenizer, Any]:
    folder = tiny_checkpoint(ARCHITECTURES[request.param])
    model = prepare_model(ModelSettings(profile=request.param, path=str(folder)))
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    return model, Tokenizer.from_file(str(folder / "tokenizer.json")), network


@pytest.mark.parametrize("document", DOCUMENTS)
def test_score_and_relevance_are_the_published_ones(
    prepared: tuple[RerankModel, Tokenizer, Any], document: str
) -> None:
    model, tokenizer, network = prepared
    ids = published(model.profile.name, tokenizer, QUERY, document, None)
    with torch.inference_mode():
        logits = network(torch.tensor([ids])).logits[0]  # [T, V]
    (prompt,) = model.renderer.render(QUERY, [document])
    assert isinstance(prompt, Prompt)
    raw = model.raw_score(_read_out(model, prompt, logits))
    expected_raw, expected_relevance = _published_score(model.profile.name, tokenizer, logits, ids)
    assert raw == pytest.approx(expected_raw, abs=1e-9)
    assert model.relevance(raw) == pytest.approx(expected_relevance, abs=1e-9)


def _read_out(model: RerankModel, prompt: Prompt, logits: torch.Tensor) -> list[float]:
    """Log-probabilities as an engine returns them."""
    logprobs = logits.log_softmax(-1)
    if model.label_token_ids:
        return [float(logprobs[-1, token]) for token in model.label_token_ids]
    positions = range(prompt.likelihood_start, len(prompt.token_ids))
    return [float(logprobs[n - 1, prompt.token_ids[n]]) for n in positions]


def _published_score(
    profile: str, tokenizer: Tokenizer, logits: torch.Tensor, ids: list[int]
) -> tuple[float, float]:
    """Raw score and relevance, from logits and with no code of ours."""
    if profile == "smollm2-135m-instruct":
        query = len(tokenizer.encode(QUERY, add_special_tokens=False).ids)
        loss = torch.nn.functional.cross_entropy(logits[-query - 1 : -1], torch.tensor(ids[-query:]))
        return -float(loss), math.exp(-float(loss))
    positive, negative = {
        "qwen3-reranker-0.6b": ("yes", "no"),
        "bge-reranker-v2-gemma": ("Yes", "No"),
        "mxbai-rerank-base-v2": ("1", "0"),
    }[profile]
    pair = logits[-1, [tokenizer.token_to_id(negative), tokenizer.token_to_id(positive)]]
    return float(pair[1] - pair[0]), float(pair.log_softmax(0)[1].exp())
