"""Generations on workers over HTTP: streamed, tried elsewhere before they begin, never after."""

import asyncio
from pathlib import Path

import pytest

from eti_rank.engine.protocol import Capability, Finish, GenerationStep, generate_whole
from eti_rank.engine.scripted import hashed_token
from eti_rank.engine.wire import DecodingControl
from eti_rank.errors import EngineUnavailable, UnsupportedRequest
from tests.fake_worker import DROP, FakeWorker, running
from tests.unit.engine.sglang_remote.conftest import started

PROMPT = tuple(range(20, 50))


def generation(*, tokens: int = 6, control: DecodingControl | None = None) -> GenerationStep:
    return GenerationStep(step_id="g", token_ids=PROMPT, max_new_tokens=tokens, control=control)


async def test_pieces_come_as_they_are_made(tmp_path: Path) -> None:
    worker = FakeWorker()
    with running(worker):
        async with started(tmp_path, worker) as engine:
            step = generation(control=DecodingControl())
            pieces = [piece async for piece in engine.generate(step)]
    assert [token for piece in pieces for token in piece.token_ids] == [
        hashed_token(PROMPT, n) for n in range(6)
    ]
    assert sum(len(piece.reports) for piece in pieces) == 6
    assert pieces[-1].finish is Finish.LENGTH
    assert pieces[-1].hooks == worker.stamp.hooks if worker.stamp else False


async def test_another_worker_takes_what_has_not_begun(tmp_path: Path) -> None:
    workers = FakeWorker(), FakeWorker()
    with running(*workers):
        async with started(tmp_path, *workers) as engine:
            for worker in workers:
                worker.outcomes = [DROP]
            generated = await generate_whole(engine, generation())
    assert len(generated.token_ids) == 6
    assert sum(len(worker.bodies) for worker in workers) >= 2


async def test_what_has_begun_fails_and_is_not_begun_again(tmp_path: Path) -> None:
    worker = FakeWorker(token_s=0.001)
    worker.drop_after = 3
    with running(worker):
        async with started(tmp_path, worker) as engine:
            with pytest.raises(EngineUnavailable, match="lost within a generation"):
                await generate_whole(engine, generation())
            assert len(worker.bodies) == 1


async def test_closing_the_iterator_ends_it_on_the_worker(tmp_path: Path) -> None:
    worker = FakeWorker(token_s=0.02)
    with running(worker):
        async with started(tmp_path, worker) as engine:
            pieces = engine.generate(generation(tokens=200))
            await anext(pieces)
            await pieces.aclose()
            async with asyncio.timeout(5):
                while not worker.aborted:
                    await asyncio.sleep(0.02)
    assert worker.aborted == worker.rids


async def test_a_refusal_in_the_stream_is_a_refusal(tmp_path: Path) -> None:
    worker = FakeWorker()
    with running(worker):
        async with started(tmp_path, worker) as engine:
            worker.outcomes = [400]
            with pytest.raises(UnsupportedRequest, match="told to say 400"):
                await generate_whole(engine, generation())


async def test_a_worker_without_tokenizer_only_scores(tmp_path: Path) -> None:
    worker = FakeWorker(skip_tokenizer_init=True)
    with running(worker):
        async with started(tmp_path, worker) as engine:
            assert Capability.GENERATE not in engine.description.capabilities
            with pytest.raises(UnsupportedRequest, match=r"engine\.generation"):
                await generate_whole(engine, generation())
