"""What every engine keeps. Adding an engine to the suite is adding one line to ENGINES.

Token ids stay within [10, 110), so that a small random-weight model can be the checkpoint. One
engine is started for most tests; those that end an engine's life start their own.
"""

import asyncio
import itertools
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from eti_rank.engine.protocol import (
    Capability,
    Engine,
    EngineState,
    Evidence,
    Finish,
    GenerationStep,
    Labels,
    Likelihood,
    Sampling,
    ScoringStep,
    generate_whole,
    score_all,
)
from eti_rank.engine.scripted import Scripted
from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.engine.wire import DecodingControl, PruningControl, TemperatureControl
from eti_rank.errors import EngineUnavailable, UnsupportedRequest
from eti_rank.settings import EngineSettings
from tests.fake_worker import engine_on_fake_worker, kill_fake_worker
from tests.tiny_models import make_tiny_checkpoint
from tests.worker_process import engine_on_worker_process, kill_worker_process

LABELS = Labels((11, 12))
FAILS_WITHIN_S = 5.0
"""How soon an open step must fail after its runtime has died."""


@dataclass(frozen=True)
class EngineCase:
    """How one kind of engine is made and killed."""

    build: Callable[[], Engine]
    """A new engine with 4 places that takes both read-outs and prompts of at least 256 tokens."""
    kill: Callable[[Engine], None]
    """Let its runtime die without asking it, as a crash would."""


def scripted() -> Engine:
    return Scripted(EngineSettings(max_running_requests=4), "scripted", 256, token_s=0.0002)


def sglang_local() -> Engine:
    checkpoint = make_tiny_checkpoint(Path(tempfile.mkdtemp(prefix="eti-rank-")), architecture="llama")
    settings = EngineSettings(max_running_requests=4, max_total_tokens=4096, threads=1, generation=True)
    return SglangLocal(settings, str(checkpoint), 256)


def kill_scheduler(engine: Engine) -> None:
    assert isinstance(engine, SglangLocal)
    os.kill(engine.process_ids[0], signal.SIGKILL)


ENGINES = [
    pytest.param(EngineCase(scripted, lambda engine: engine.kill()), id="scripted"),
    pytest.param(EngineCase(engine_on_fake_worker, kill_fake_worker), id="sglang_remote on a fake worker"),
    pytest.param(EngineCase(sglang_local, kill_scheduler), id="sglang_local", marks=pytest.mark.runtime),
    pytest.param(
        EngineCase(engine_on_worker_process, kill_worker_process),
        id="sglang_remote",
        marks=pytest.mark.runtime,
    ),
]

pytestmark = pytest.mark.asyncio(loop_scope="module")
serial = itertools.count()


@pytest.fixture(scope="module", params=ENGINES)
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(case: EngineCase) -> AsyncIterator[Engine]:
    engine = case.build()
    await engine.start()
    yield engine
    await engine.close()


def tokens(seed: int, length: int) -> tuple[int, ...]:
    generator = random.Random(seed)
    return tuple(generator.randrange(10, 110) for _ in range(length))


def step(token_ids: tuple[int, ...], readout: Labels | Likelihood = LABELS) -> ScoringStep:
    return ScoringStep(step_id=f"contract-{next(serial)}", token_ids=token_ids, readout=readout)


def generation(seed: int, *, new_tokens: int = 8, control: DecodingControl | None = None) -> GenerationStep:
    return GenerationStep(
        step_id=f"contract-{next(serial)}",
        token_ids=tokens(seed, 30),
        max_new_tokens=new_tokens,
        sampling=Sampling(temperature=0.0, ignore_eos=True),
        control=control,
    )


def largest_difference(left: Evidence, right: Evidence) -> float:
    return max(abs(a - b) for a, b in zip(left.logprobs, right.logprobs, strict=True))


async def test_description_is_complete(engine: Engine) -> None:
    description = engine.description
    assert engine.state is EngineState.READY
    assert description.kind and description.model and description.device and description.dtype
    assert description.capabilities == frozenset(Capability)
    assert description.max_prompt_tokens >= 256
    assert description.max_running_requests == 4
    assert description.noise_floor_nats >= 0
    assert description.startup_s and all(seconds >= 0 for seconds in description.startup_s.values())


async def test_evidence_comes_in_the_order_of_the_steps(engine: Engine) -> None:
    steps = [step(tokens(seed, 20 + 17 * (seed % 5))) for seed in range(12)]
    evidence = await score_all(engine, steps)
    assert [e.step_id for e in evidence] == [s.step_id for s in steps]
    assert [e.prompt_tokens for e in evidence] == [len(s.token_ids) for s in steps]


async def test_labels_give_one_logprob_per_label_in_their_order(engine: Engine) -> None:
    ids = tokens(100, 30)
    forward = await engine.score(step(ids, Labels((11, 12, 13))))
    backward = await engine.score(step(ids, Labels((13, 12, 11))))
    assert len(forward.logprobs) == 3
    assert all(value <= 0 for value in forward.logprobs)
    assert forward.logprobs == pytest.approx(backward.logprobs[::-1], abs=engine.description.noise_floor_nats)
    assert len(set(forward.logprobs)) == 3


@pytest.mark.parametrize("start", [1, 15, 39], ids=["all-but-first", "middle", "last-only"])
async def test_likelihood_gives_one_logprob_per_token_from_start(engine: Engine, start: int) -> None:
    evidence = await engine.score(step(tokens(200, 40), Likelihood(start)))
    assert len(evidence.logprobs) == 40 - start
    assert all(value <= 0 for value in evidence.logprobs)


async def test_likelihood_of_a_suffix_is_the_suffix_of_the_likelihood(engine: Engine) -> None:
    whole = await engine.score(step(tokens(201, 40), Likelihood(1)))
    suffix = await engine.score(step(tokens(201, 40), Likelihood(30)))
    tolerance = engine.description.noise_floor_nats
    assert whole.logprobs[29:] == pytest.approx(suffix.logprobs, abs=tolerance)


async def test_splitting_a_batch_changes_nothing_beyond_the_noise_floor(engine: Engine) -> None:
    prompts = [tokens(300 + n, 24 + 9 * n) for n in range(6)]
    readouts = [LABELS, Likelihood(20)] * 3
    together = await score_all(engine, [step(p, r) for p, r in zip(prompts, readouts, strict=True)])
    alone = [await engine.score(step(p, r)) for p, r in zip(prompts, readouts, strict=True)]
    differences = map(largest_difference, together, alone)
    assert max(differences) <= engine.description.noise_floor_nats


async def test_a_repeated_prefix_is_cached_and_changes_nothing(engine: Engine) -> None:
    prefix = tokens(400, 96)
    first = await engine.score(step(prefix + tokens(401, 20)))
    second = await engine.score(step(prefix + tokens(402, 20)))
    repeated = await engine.score(step(prefix + tokens(401, 20)))
    assert first.cached_tokens == 0
    assert 64 <= second.cached_tokens <= 96
    assert 64 <= repeated.cached_tokens < repeated.prompt_tokens
    assert largest_difference(first, repeated) <= engine.description.noise_floor_nats


async def test_cancelling_frees_the_places(engine: Engine) -> None:
    victims = [asyncio.create_task(engine.score(step(tokens(500 + n, 250)))) for n in range(8)]
    await asyncio.sleep(0.01)
    for victim in victims:
        victim.cancel()
    outcomes = await asyncio.gather(*victims, return_exceptions=True)
    assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    survivors = await asyncio.wait_for(
        score_all(engine, [step(tokens(600 + n, 30)) for n in range(4)]), timeout=FAILS_WITHIN_S
    )
    assert len(survivors) == 4


async def test_one_failing_step_cancels_its_siblings_in_score_all(engine: Engine) -> None:
    with pytest.raises(UnsupportedRequest):
        await score_all(engine, [step(tokens(700, 200)), step(tokens(701, 30), Likelihood(0))])
    assert engine.state is EngineState.READY


@pytest.mark.parametrize(
    ("length", "readout"),
    [
        pytest.param(0, LABELS, id="no-tokens"),
        pytest.param(1_000_000, LABELS, id="too-long"),
        pytest.param(20, Likelihood(0), id="likelihood-of-the-first-token"),
        pytest.param(20, Likelihood(20), id="likelihood-of-nothing"),
        pytest.param(20, Labels((10**9,)), id="label-outside-the-vocabulary"),
        pytest.param(20, Labels((-1,)), id="negative-label"),
    ],
)
async def test_a_step_that_it_cannot_do_raises(
    engine: Engine, length: int, readout: Labels | Likelihood
) -> None:
    with pytest.raises(UnsupportedRequest):
        await engine.score(step((10,) * length, readout))
    assert engine.state is EngineState.READY


async def test_a_token_outside_the_vocabulary_raises(engine: Engine) -> None:
    with pytest.raises(UnsupportedRequest):
        await engine.score(step((10, 10**9, 10)))


async def test_a_generation_ends_after_the_tokens_it_may_have(engine: Engine) -> None:
    pieces = [piece async for piece in engine.generate(generation(800))]
    assert sum(len(piece.token_ids) for piece in pieces) == 8
    assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + [Finish.LENGTH]
    assert all(piece.prompt_tokens == 30 and not piece.reports for piece in pieces)


async def test_greedy_generations_together_are_those_alone(engine: Engine) -> None:
    steps = [generation(810 + n) for n in range(4)]
    together = await asyncio.gather(*(generate_whole(engine, each) for each in steps))
    for each, generated in zip(steps, together, strict=True):
        alone = await generate_whole(engine, each)
        assert (alone.token_ids, alone.text) == (generated.token_ids, generated.text)


async def test_a_control_brings_one_report_per_token(engine: Engine) -> None:
    generated = await generate_whole(engine, generation(820, control=DecodingControl()))
    assert len(generated.reports) == len(generated.token_ids) == 8
    assert all((report.entropy_nats or 0) > 0 for report in generated.reports)


async def test_leaving_a_generation_frees_its_place(engine: Engine) -> None:
    left = [engine.generate(generation(830 + n, new_tokens=200)) for n in range(4)]
    for pieces in left:
        await anext(pieces)
    for pieces in left:
        await pieces.aclose()
    async with asyncio.timeout(FAILS_WITHIN_S):
        await asyncio.gather(*(generate_whole(engine, generation(840 + n)) for n in range(4)))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"max_new_tokens": 0}, id="no-new-token"),
        pytest.param({"max_new_tokens": 1_000_000}, id="more-than-the-context"),
        pytest.param({"token_ids": ()}, id="no-prompt"),
        pytest.param({"token_ids": (10, 10**9)}, id="token-outside-the-vocabulary"),
        pytest.param(
            {"control": DecodingControl(temperature=TemperatureControl(law="solve", target_nats=-1.0))},
            id="target-below-zero",
        ),
        pytest.param(
            {"control": DecodingControl(pruning=PruningControl(protected=((5, 2),)))}, id="range-backwards"
        ),
    ],
)
async def test_a_generation_that_it_cannot_do_raises(engine: Engine, wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRequest):
        await generate_whole(engine, replace(generation(850), **wrong))
    assert engine.state is EngineState.READY


async def test_before_start_nothing_is_scored_or_described(case: EngineCase) -> None:
    engine = case.build()
    assert engine.state is EngineState.NEW
    with pytest.raises(EngineUnavailable):
        await engine.score(step(tokens(1, 10)))
    with pytest.raises(EngineUnavailable):
        await generate_whole(engine, generation(1))
    with pytest.raises(EngineUnavailable):
        _ = engine.description
    await engine.close()
    assert engine.state is EngineState.CLOSED


async def test_close_fails_open_steps_and_may_be_called_twice(case: EngineCase) -> None:
    engine = case.build()
    await engine.start()
    waiter = asyncio.create_task(engine.wait_down())
    open_steps = [asyncio.create_task(engine.score(step(tokens(n, 250)))) for n in range(8)]
    await asyncio.sleep(0.01)
    await engine.close()
    await engine.close()
    outcomes = await asyncio.wait_for(
        asyncio.gather(*open_steps, return_exceptions=True), timeout=FAILS_WITHIN_S
    )
    assert any(isinstance(outcome, EngineUnavailable) for outcome in outcomes)
    assert all(isinstance(outcome, EngineUnavailable | Evidence) for outcome in outcomes)
    await asyncio.wait_for(waiter, timeout=FAILS_WITHIN_S)
    assert engine.state is EngineState.CLOSED
    with pytest.raises(EngineUnavailable):
        await engine.score(step(tokens(1, 10)))


async def test_death_fails_open_steps_within_seconds(case: EngineCase) -> None:
    engine = case.build()
    await engine.start()
    open_steps = [asyncio.create_task(engine.score(step(tokens(n, 250)))) for n in range(8)]
    open_steps.append(asyncio.create_task(generate_whole(engine, generation(9, new_tokens=200))))
    await asyncio.sleep(0.01)
    case.kill(engine)
    outcomes = await asyncio.wait_for(
        asyncio.gather(*open_steps, return_exceptions=True), timeout=FAILS_WITHIN_S
    )
    assert any(isinstance(outcome, EngineUnavailable) for outcome in outcomes)
    await asyncio.wait_for(engine.wait_down(), timeout=FAILS_WITHIN_S)
    assert engine.state is EngineState.DOWN
    with pytest.raises(EngineUnavailable):
        await engine.score(step(tokens(1, 10)))
    await engine.close()
    assert engine.state is EngineState.CLOSED
