"""The hooks beside SGLang's other accelerations: mixtures of experts, and speculative decoding."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from eti_rank.engine.protocol import (
    Finish,
    GenerationStep,
    Labels,
    Sampling,
    ScoringStep,
    generate_whole,
)
from eti_rank.engine.wire import DecodingControl, TemperatureControl
from eti_rank.environment.devices import cuda_device_present
from eti_rank.errors import ConfigurationError, UnsupportedRequest
from tests.runtime.conftest import started
from tests.tiny_models import make_tiny_checkpoint

PROMPT = tuple(range(20, 60)) * 2
LABELS = (11, 12, 13)
needs_cuda = pytest.mark.skipif(
    not cuda_device_present(), reason="SGLang's kernels for speculative decoding need CUDA"
)


def greedy(name: str, control: DecodingControl | None = None) -> GenerationStep:
    return GenerationStep(
        step_id=name,
        token_ids=PROMPT,
        max_new_tokens=16,
        sampling=Sampling(temperature=0.0, ignore_eos=True),
        control=control,
    )


async def test_a_mixture_of_experts_is_scored_and_measured_like_any_model(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "moe", "qwen3", with_experts=True)
    network = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    held = DecodingControl(temperature=TemperatureControl(law="solve", target_nats=3.0))
    async with started(checkpoint, generation=True) as engine:
        evidence = await engine.score(ScoringStep(step_id="s", token_ids=PROMPT, readout=Labels(LABELS)))
        generated = await generate_whole(engine, greedy("g", DecodingControl()))
        sampled = await generate_whole(
            engine, GenerationStep(step_id="h", token_ids=PROMPT, max_new_tokens=16, control=held)
        )
    ids = list(PROMPT)
    with torch.inference_mode():
        logprobs = network(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        for report in generated.reports:
            log_p = network(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            assert report.entropy_nats == pytest.approx(-(log_p.exp() * log_p).sum().item(), abs=1e-3)
            ids.append(int(log_p.argmax()))
    assert evidence.logprobs == pytest.approx(logprobs[list(LABELS)].tolist(), abs=1e-3)
    assert generated.token_ids == tuple(ids[len(PROMPT) :])
    assert all(report.sampled_entropy_nats == pytest.approx(3.0, abs=1e-3) for report in sampled.reports)


@pytest.mark.skipif(cuda_device_present(), reason="refused on a CPU only")
@pytest.mark.parametrize("algorithm", ["ngram", "draft"])
async def test_speculative_decoding_is_refused_on_a_cpu(tiny_llama: Path, algorithm: str) -> None:
    speculative = {"algorithm": algorithm, "draft_model": str(tiny_llama)}
    with pytest.raises(ConfigurationError, match=rf"algorithm is {algorithm}.*need CUDA"):
        async with started(tiny_llama, generation=True, speculative=speculative):
            pass


@needs_cuda
@pytest.mark.parametrize("algorithm", ["ngram", "draft"])
async def test_speculative_decoding_changes_no_greedy_token(tiny_llama: Path, algorithm: str) -> None:
    common: dict[str, Any] = {"generation": True, "dtype": "float32"}
    speculative = {"algorithm": algorithm, "draft_model": str(tiny_llama)}
    async with started(tiny_llama, **common) as engine:
        plain = await generate_whole(engine, greedy("plain"))
    async with started(tiny_llama, speculative=speculative, **common) as engine:
        assert set(engine.description.hooks) >= {"telemetry", "scheduling"}
        drafted = await generate_whole(engine, greedy("drafted"))
        with pytest.raises(UnsupportedRequest, match=r"engine\.speculative\.algorithm off"):
            await generate_whole(engine, greedy("controlled", DecodingControl()))
    assert drafted.finish is Finish.LENGTH
    assert drafted.token_ids == plain.token_ids
