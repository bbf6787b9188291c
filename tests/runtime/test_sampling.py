"""The sampling hook in the real scheduler, on a random-weight model whose entropy is near ln V."""

import asyncio
import itertools
import json
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch

from eti_rank.engine import generation
from eti_rank.engine.protocol import (
    Finish,
    Generated,
    GenerationStep,
    Labels,
    Sampling,
    ScoringStep,
    generate_whole,
)
from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.engine.wire import DecodingControl, StepParams, TemperatureControl, decode_reports
from eti_rank.errors import UnsupportedRequest
from tests.runtime.conftest import started
from tests.tiny_models import VOCABULARY

MEASURE = DecodingControl()
SOLVE = DecodingControl(temperature=TemperatureControl(law="solve", target_nats=3.0))
FEEDBACK = DecodingControl(temperature=TemperatureControl(law="feedback", target_nats=3.0))
LITERAL = DecodingControl(temperature=TemperatureControl(law="literal", target_nats=3.0))
SCHEMA = json.dumps({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(tiny_llama: Path) -> AsyncIterator[SglangLocal]:
    async with started(tiny_llama, generation=True) as engine:
        yield engine


def step(
    name: str,
    *,
    seed: int = 0,
    tokens: int = 16,
    control: DecodingControl | None = MEASURE,
    **sampling: Any,
) -> GenerationStep:
    prompt = tuple(10 + (7 * seed + 3 * n) % 97 for n in range(30 + seed))
    chosen = Sampling(**{"ignore_eos": True, **sampling})
    return GenerationStep(
        step_id=name, token_ids=prompt, max_new_tokens=tokens, sampling=chosen, control=control
    )


async def together(engine: SglangLocal, *steps: GenerationStep) -> list[Generated]:
    return await asyncio.gather(*(generate_whole(engine, each) for each in steps))


async def test_greedy_is_reported_and_left_as_it_is(engine: SglangLocal) -> None:
    for control in (MEASURE, SOLVE, FEEDBACK):
        plain = await generate_whole(engine, step("plain", temperature=0.0, control=None))
        seen = await generate_whole(engine, step("seen", temperature=0.0, control=control))
        assert seen.token_ids == plain.token_ids
        assert plain.reports == ()
        assert [report.temperature for report in seen.reports] == [0.0] * 16
        assert all(report.sampled_entropy_nats is None for report in seen.reports)


async def test_entropy_is_that_of_the_models_own_distribution(engine: SglangLocal) -> None:
    """Against SGLang's own log-probabilities of the whole vocabulary, at another sampling temperature."""
    generated = await generate_whole(engine, step("sampled", tokens=1, temperature=0.3))
    labels = Labels(tuple(range(VOCABULARY)))
    evidence = await engine.score(
        ScoringStep(step_id="all", token_ids=step("sampled").token_ids, readout=labels)
    )
    entropy = -sum(math.exp(logprob) * logprob for logprob in evidence.logprobs)
    varentropy = sum(math.exp(logprob) * (logprob + entropy) ** 2 for logprob in evidence.logprobs)
    (report,) = generated.reports
    assert report.entropy_nats == pytest.approx(entropy, abs=1e-4)
    assert report.varentropy_nats2 == pytest.approx(varentropy, abs=1e-3)
    assert report.temperature == 0.3


async def test_penalties_do_not_change_what_is_measured(engine: SglangLocal) -> None:
    one, other = await together(
        engine,
        step("plain", tokens=1, temperature=0.0),
        step("penalised", tokens=1, temperature=0.0, presence_penalty=1.9, frequency_penalty=1.9),
    )
    assert one.reports[0].entropy_nats == pytest.approx(other.reports[0].entropy_nats, abs=1e-5)


async def test_solve_holds_the_target_at_every_token(engine: SglangLocal) -> None:
    generated = await generate_whole(engine, step("solve", control=SOLVE, tokens=40))
    for report in generated.reports:
        assert report.reached
        assert report.sampled_entropy_nats == pytest.approx(3.0, abs=1e-3)
        assert report.entropy_nats is not None and report.temperature is not None
        assert (report.entropy_nats > 3.0) == (report.temperature < 1.0)


async def test_feedback_comes_to_the_target_and_literal_leaves_it(engine: SglangLocal) -> None:
    held, lost = await together(
        engine,
        step("feedback", control=FEEDBACK, tokens=250),
        step("literal", control=LITERAL, tokens=60),
    )
    late = [report.sampled_entropy_nats or 0.0 for report in held.reports[-200:]]
    assert sum(late) / len(late) == pytest.approx(3.0, abs=0.6)
    assert [report.temperature for report in lost.reports[-30:]] == [2.0] * 30


async def test_what_cannot_be_reached_is_said(engine: SglangLocal) -> None:
    control = DecodingControl(temperature=TemperatureControl(law="solve", target_nats=3.0, low=0.9, high=1.1))
    generated = await generate_whole(engine, step("beyond", control=control))
    assert all(report.reached is False and report.temperature == 0.9 for report in generated.reports)


async def test_rows_of_one_batch_do_not_touch_each_other(engine: SglangLocal) -> None:
    kinds = [None, MEASURE, SOLVE, FEEDBACK]
    steps = [
        step(f"{n}", seed=n, control=control, temperature=0.0 if control in (None, MEASURE) else 1.0)
        for n, control in enumerate(kinds * 2)
    ]
    batch = await together(engine, *steps)
    for each, generated in zip(steps, batch, strict=True):
        assert len(generated.token_ids) == 16
        assert len(generated.reports) == (16 if each.control else 0)
        if each.control is SOLVE:
            assert all(report.reached for report in generated.reports)
        if each.sampling.temperature == 0.0:
            alone = await generate_whole(engine, each)
            assert alone.token_ids == generated.token_ids


async def test_bounds_hold_the_entropy(engine: SglangLocal) -> None:
    control = DecodingControl(bounds_top_k=100)
    generated = await generate_whole(engine, step("bounds", control=control))
    for report in generated.reports:
        assert report.bounds_nats is not None and report.entropy_nats is not None
        assert report.bounds_nats[0] - 1e-4 <= report.entropy_nats <= report.bounds_nats[1] + 1e-4
        assert report.bounds_nats[1] - report.bounds_nats[0] > 0.1


async def test_entropic_time_counts_what_the_entropies_fell(engine: SglangLocal) -> None:
    generated = await generate_whole(engine, step("tau", tokens=40))
    entropies = [report.entropy_nats or 0.0 for report in generated.reports]
    falls = sum(max(0.0, before - after) for before, after in itertools.pairwise(entropies))
    times = [report.entropic_time_nats or 0.0 for report in generated.reports]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(falls, abs=40 * 3e-4)
    assert times[-1] > 0.1


async def test_a_stream_reports_each_token_as_it_comes(engine: SglangLocal) -> None:
    pieces = [piece async for piece in engine.generate(step("stream", control=SOLVE))]
    assert len(pieces) > 3
    assert all(len(piece.token_ids) == len(piece.reports) for piece in pieces)
    assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish is Finish.LENGTH


async def test_a_grammar_decides_what_is_held(engine: SglangLocal) -> None:
    control = DecodingControl(temperature=TemperatureControl(law="solve", target_nats=0.5))
    generated = await generate_whole(
        engine, step("json", control=control, json_schema=SCHEMA, ignore_eos=False, tokens=200)
    )
    assert len(generated.reports) == len(generated.token_ids)
    assert generated.text.lstrip().startswith("{")
    forced = [report for report in generated.reports if not report.reached]
    free = [report for report in generated.reports if report.reached]
    assert forced and free  # a single allowed token has entropy 0 at any temperature
    assert all(report.sampled_entropy_nats == pytest.approx(0.5, abs=1e-3) for report in free)
    if generated.finish is Finish.STOP:
        assert json.loads(generated.text)["ok"] in (True, False)


async def test_a_stop_text_ends_text_tokens_and_reports_together(engine: SglangLocal) -> None:
    whole = await generate_whole(engine, step("whole", temperature=0.0))
    stop = next(letter for letter in whole.text[1:] if letter.isascii() and letter not in whole.text[:8])
    cut = await generate_whole(engine, step("cut", temperature=0.0, stop=(stop,)))
    assert cut.finish is Finish.STOP
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert len(cut.token_ids) == len(cut.reports) < 16


async def test_several_samples_of_one_prompt_have_states_of_their_own(engine: SglangLocal) -> None:
    """`n` is SGLang's own; each sample is a request to the scheduler."""
    asked = generation.request(step("n", control=SOLVE, tokens=8))
    asked["stream"] = False
    asked["sampling_params"]["n"] = 3
    assert engine._engine is not None and engine._host is not None
    answers = await engine._host.await_(engine._engine.async_generate(**asked))
    assert len(answers) == 3
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 1
    for answer in answers:
        reports = decode_reports(answer["meta_info"])
        assert len(reports) == 8
        assert all(report.reached for report in reports)
    times = [decode_reports(answer["meta_info"])[-1].entropic_time_nats for answer in answers]
    assert len(set(times)) > 1


async def test_parameters_without_sense_are_refused_and_harm_nobody(engine: SglangLocal) -> None:
    """Sent past our own check, as a client of a worker could."""
    asked = generation.request(step("bad", tokens=4))
    asked["stream"] = False
    asked["sampling_params"]["custom_params"]["eti_rank"]["decoding"] = {"temperature": {"law": "warm"}}
    assert engine._engine is not None and engine._host is not None
    answer = await engine._host.await_(engine._engine.async_generate(**asked))
    with pytest.raises(UnsupportedRequest, match=r"decoding\.temperature\.law"):
        generation.Pieces(step("bad")).take(answer)
    assert (await generate_whole(engine, step("good"))).finish is Finish.LENGTH


async def test_logits_that_are_no_distribution_are_refused_alone(engine: SglangLocal) -> None:
    """As of a damaged checkpoint: an error in the hook would end the scheduler."""
    from eti_rank.runtime.forward_rows import Row
    from eti_rank.runtime.request_state import RequestState
    from eti_rank.runtime.sampling import _observe

    def row() -> Row:
        state = RequestState(StepParams(decoding=SOLVE))
        request = SimpleNamespace(sampling_params=SimpleNamespace(temperature=1.0))
        return Row(state, 3, 0, is_greedy=False, ends_prompt=True, request=request)

    logits = torch.zeros(3, 50)
    logits[1, 7] = float("nan")
    rows = list(enumerate([row(), row(), row()]))
    assert _observe(logits, rows) == [rows[0], rows[2]]
    assert rows[1][1].state.refusal == "the model's logits are not finite"
    assert rows[2][1].state.reports[0].entropy_nats == pytest.approx(math.log(50), abs=1e-5)
    assert _observe(logits[1:2], rows[:1]) == []


async def test_a_hook_that_is_off_is_not_asked_in_vain(tiny_llama: Path) -> None:
    async with started(tiny_llama, generation=True, hooks=["scheduling"]) as engine:
        with pytest.raises(UnsupportedRequest, match="sampling"):
            await generate_whole(engine, step("control", control=SOLVE))
        plain = await generate_whole(engine, step("plain", control=None))
    assert plain.reports == ()
    assert "sampling" not in plain.hooks


async def test_without_generation_nothing_is_generated(tiny_llama: Path) -> None:
    async with started(tiny_llama) as engine:
        with pytest.raises(UnsupportedRequest, match=r"engine\.generation"):
            await generate_whole(engine, step("plain"))


async def test_state_survives_retraction(tiny_llama: Path) -> None:
    """SGLang hopes that requests end early, and admits two whose KV cache has no room when they do not."""
    async with started(tiny_llama, generation=True, max_total_tokens=520) as engine:
        asked = [
            generation.request(step(f"{n}", seed=n, tokens=262, control=FEEDBACK, ignore_eos=False))
            | {"stream": False}
            for n in range(3)
        ]
        assert engine._engine is not None and engine._host is not None
        for _ in range(8):  # one that samples its end early leaves room for the others
            calls = [engine._host.await_(engine._engine.async_generate(**each)) for each in asked]
            answers = await asyncio.gather(*calls)
            if retracted := [one for one in answers if one["meta_info"]["num_retractions"]]:
                break
    assert retracted
    for answer in answers:
        reports = decode_reports(answer["meta_info"])
        assert len(reports) == len(answer["output_ids"])
        times = [report.entropic_time_nats or 0.0 for report in reports]
        assert times == sorted(times)

    for answer in retracted:
        late = [report.sampled_entropy_nats or 0.0 for report in decode_reports(answer["meta_info"])[20:]]
        assert sum(late) / len(late) == pytest.approx(3.0, abs=1.0)


async def test_closing_a_stream_frees_its_place(engine: SglangLocal) -> None:
    async with aclosing(engine.generate(step("left", tokens=400))) as pieces:
        async for _ in pieces:
            break
    (again,) = await together(engine, step("after"))
    assert again.finish is Finish.LENGTH
    async with asyncio.timeout(5):
        while engine.unfinished_requests:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_two_thousand_requests_leave_nothing_behind(engine: SglangLocal) -> None:
    """A state with its reports takes some 8 kB: kept, those of 1,500 requests would be 12 MB."""
    scheduler = psutil.Process(engine.process_ids[0])

    async def run(count: int) -> None:
        for begin in range(0, count, 50):
            steps = [step(f"{begin + n}", seed=n % 7, tokens=8, control=FEEDBACK) for n in range(50)]
            await together(engine, *steps)

    await run(500)
    before = scheduler.memory_info().rss
    await run(1500)
    assert scheduler.memory_info().rss - before < 4 << 20
    assert engine.unfinished_requests == 0
