"""The engine's log-probabilities equal a plain transformers forward pass of the same token ids.

Tolerance 1e-4: both sides compute in float32 and differ in the order of their sums only.
"""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from eti_rank.engine.protocol import Evidence, Labels, Likelihood, ScoringStep, score_all
from tests.runtime.conftest import started
from tests.tiny_models import make_tiny_checkpoint

TOLERANCE_NATS = 1e-4
LABELS = (11, 500, 42)


def steps() -> list[ScoringStep]:
    """Prompts of odd lengths, half of them behind a shared prefix, read out both ways."""
    rng = random.Random(7)
    prefix = [rng.randrange(20, 1500) for _ in range(37)]
    made = []
    for number in range(8):
        own = [rng.randrange(20, 1500) for _ in range(rng.randrange(3, 90))]
        tokens = tuple(prefix + own if number % 2 else own)
        made.append(ScoringStep(step_id=f"label-{number}", token_ids=tokens, readout=Labels(LABELS)))
        start = len(tokens) - 2
        made.append(ScoringStep(step_id=f"likelihood-{number}", token_ids=tokens, readout=Likelihood(start)))
    made.append(ScoringStep(step_id="whole", token_ids=tuple(prefix), readout=Likelihood(1)))
    return made


def expected(model: torch.nn.Module, step: ScoringStep) -> list[float]:
    with torch.inference_mode():
        logits = model(torch.tensor([step.token_ids])).logits[0].double()
    logprobs = logits.log_softmax(-1)  # [T, V]
    if isinstance(step.readout, Labels):
        return logprobs[-1, list(step.readout.token_ids)].tolist()
    positions = range(step.readout.start, len(step.token_ids))
    return [logprobs[position - 1, step.token_ids[position]].item() for position in positions]


def largest_difference(model: torch.nn.Module, asked: list[ScoringStep], got: list[Evidence]) -> float:
    assert [step.step_id for step in asked] == [evidence.step_id for evidence in got]
    return max(
        abs(want - have)
        for step, evidence in zip(asked, got, strict=True)
        for want, have in zip(expected(model, step), evidence.logprobs, strict=True)
    )


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("radix_cache", [True, False], ids=["radix", "no-radix"])
async def test_equals_transformers(architecture: str, radix_cache: bool, tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / architecture, architecture=architecture)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    asked = steps()
    async with started(checkpoint, radix_cache=radix_cache) as engine:
        alone = [await engine.score(step) for step in asked]
        batched = await score_all(engine, asked)
    assert largest_difference(model, asked, alone) < TOLERANCE_NATS
    assert largest_difference(model, asked, batched) < TOLERANCE_NATS
    assert (sum(e.cached_tokens for e in batched) > 0) is radix_cache
