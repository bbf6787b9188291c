"""`SglangRemote` on real workers: the same scores, and a death that loses nothing."""

import asyncio
import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from eti_rank.engine import wire
from eti_rank.engine.protocol import Evidence, Labels, ScoringStep, score_all
from eti_rank.engine.sglang_remote import SglangRemote
from eti_rank.settings import EngineSettings
from tests.runtime.test_parity import TOLERANCE_NATS, largest_difference, steps
from tests.worker_process import KEY, WorkerProcess, engine_on

HOOKS = tuple(sorted((wire.TELEMETRY, *EngineSettings().hooks)))


class Pair:
    """Two workers; one that has ended is started again, at its port."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self.workers = [WorkerProcess(checkpoint), WorkerProcess(checkpoint)]

    def revive(self, number: int) -> WorkerProcess:
        if self.workers[number].process.poll() is not None:
            self.workers[number] = WorkerProcess(self.checkpoint, self.workers[number].port)
        return self.workers[number]

    def both(self) -> tuple[WorkerProcess, WorkerProcess]:
        found = self.revive(0), self.revive(1)
        for worker in found:
            assert worker.url
        return found


@pytest.fixture(scope="module")
def pair(tiny_llama: Path) -> Iterator[Pair]:
    pair = Pair(tiny_llama)
    yield pair
    for worker in pair.workers:
        worker.close()


async def until_ready(engine: SglangRemote, url: str, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while engine.workers[url] != "ready":
            await asyncio.sleep(0.05)


def stream(count: int) -> list[ScoringStep]:
    rng = random.Random(3)
    tokens = [tuple(rng.randrange(20, 1500) for _ in range(200)) for _ in range(count)]
    return [
        ScoringStep(step_id=f"s{number}", token_ids=own, readout=Labels((11, 500)))
        for number, own in enumerate(tokens)
    ]


async def test_scores_equal_transformers(pair: Pair) -> None:
    engine = engine_on(pair.checkpoint, *(worker.url for worker in pair.both()))
    await engine.start()
    try:
        asked = steps()
        alone = [await engine.score(step) for step in asked]
        batched = await score_all(engine, asked)
        assert largest_difference(pair.model, asked, alone) < TOLERANCE_NATS
        assert largest_difference(pair.model, asked, batched) < TOLERANCE_NATS
        assert sum(evidence.cached_tokens for evidence in batched) > 0
        assert all({*HOOKS} - {*evidence.hooks} <= {wire.SAMPLING} for evidence in batched)
        assert engine.description.hooks == HOOKS
        assert engine.description.max_running_requests == 8
        await engine.flush_cache()
        assert (await engine.score(asked[0])).cached_tokens == 0
    finally:
        await engine.close()


async def test_cancelled_steps_leave_the_worker(pair: Pair) -> None:
    worker, _ = pair.both()
    engine = engine_on(pair.checkpoint, worker.url)
    await engine.start()
    try:
        abandoned = [asyncio.create_task(engine.score(step)) for step in stream(64)]
        await asyncio.sleep(0.05)
        for task in abandoned:
            task.cancel()
        outcomes = await asyncio.gather(*abandoned, return_exceptions=True)
        assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        async with asyncio.timeout(5):
            await engine.score(stream(1)[0])
        await engine.flush_cache()  # refused while anything is open
    finally:
        await engine.close()


async def test_a_killed_worker_loses_no_step_and_comes_back(pair: Pair) -> None:
    victim, survivor = pair.both()
    family = victim.family()
    engine = engine_on(pair.checkpoint, victim.url, survivor.url)
    await engine.start()
    try:
        asked = stream(120)
        running = asyncio.create_task(score_all(engine, asked))
        await asyncio.sleep(0.1)
        assert not running.done()
        victim.kill()
        async with asyncio.timeout(60):
            got: list[Evidence] = await running
        assert largest_difference(pair.model, asked, got) < TOLERANCE_NATS
        assert engine.workers == {victim.url: "out", survivor.url: "ready"}
        await asyncio.to_thread(psutil.wait_procs, family, timeout=10)
        assert not any(process.is_running() for process in family)

        back = await asyncio.to_thread(lambda: pair.revive(0).url)
        assert back == victim.url
        await until_ready(engine, back)
        again = await score_all(engine, asked)
        assert largest_difference(pair.model, asked, again) < TOLERANCE_NATS
    finally:
        await engine.close()


def test_a_worker_whose_scheduler_dies_ends_and_says_so(pair: Pair) -> None:
    worker, _ = pair.both()
    family = worker.family()
    worker.scheduler().kill()
    assert worker.ended(within_s=10) == 3
    assert "eti-rank: SGLang died: " in worker.log
    psutil.wait_procs(family, timeout=10)
    assert not any(process.is_running() for process in family)


def test_key_is_asked_for_and_health_is_open(pair: Pair) -> None:
    worker = pair.revive(1)
    assert httpx.get(f"{worker.url}/health", timeout=30).status_code == 200
    assert httpx.get(f"{worker.url}/server_info", timeout=30).status_code == 401
    named = httpx.get(
        f"{worker.url}/server_info", headers={"Authorization": f"Bearer {KEY}"}, timeout=30
    ).json()
    assert named["enable_custom_logit_processor"] is False
    assert named["host"] == "127.0.0.1"


def test_sigterm_is_a_clean_end(pair: Pair) -> None:
    worker = pair.revive(1)
    assert worker.url
    family = worker.family()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ended(within_s=30) == 0
    psutil.wait_procs(family, timeout=10)
    assert not any(process.is_running() for process in family)


def test_sigterm_while_it_starts_is_a_clean_end(tiny_llama: Path) -> None:
    worker = WorkerProcess(tiny_llama)
    try:
        psutil.wait_procs([psutil.Process(worker.process.pid)], timeout=4)
        family = worker.family()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ended(within_s=30) == 0
        psutil.wait_procs(family, timeout=10)
        assert not any(process.is_running() for process in family)
    finally:
        worker.close()


def test_a_worker_without_our_hooks_never_gets_ready(tiny_llama: Path) -> None:
    worker = WorkerProcess(tiny_llama, SGLANG_PLUGINS="another")
    try:
        assert worker.ended(within_s=120) == 2
        assert "the probe came back without a stamp" in worker.log
        assert "worker ready" not in worker.log
    finally:
        worker.close()


def test_a_port_in_use_is_named_before_anything_is_loaded(tiny_llama: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = WorkerProcess(tiny_llama, port)
        try:
            assert worker.ended(within_s=60) == 2
            assert f"a worker cannot listen on 127.0.0.1 port {port}: Address already in use" in worker.log
        finally:
            worker.close()
