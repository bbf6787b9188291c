"""`SglangRemote` on real workers behind SGLang's own router, where that is installed (`sglang-router`)."""

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from eti_rank.engine.protocol import EngineState, score_all
from eti_rank.errors import EngineUnavailable
from tests.runtime.test_parity import TOLERANCE_NATS, largest_difference, steps
from tests.runtime.test_remote import stream
from tests.worker_process import KEY, WorkerProcess, engine_on

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang_router") is None, reason="sglang-router is not installed"
)
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
READY_WITHIN_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def workers(tiny_llama: Path) -> Iterator[list[WorkerProcess]]:
    workers = [WorkerProcess(tiny_llama), WorkerProcess(tiny_llama)]
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture(params=["cache_aware", "round_robin"])
def router(request: pytest.FixtureRequest, workers: list[WorkerProcess]) -> Iterator[str]:
    """Its URL, once it takes both workers for healthy."""
    port, metrics = free_port(), free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", "--policy", request.param]
    command += ["--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    command += ["--worker-startup-check-interval", "1", "--health-check-interval-secs", "2"]
    command += ["--worker-urls", *(worker.url for worker in workers)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    try:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline_s:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readiness").json().get("healthy_workers") == 2:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def test_scores_cancels_and_survives_behind_the_router(
    router: str, workers: list[WorkerProcess], tiny_llama: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    engine = engine_on(tiny_llama, router)
    await engine.start()
    try:
        assert engine.description.max_running_requests == 8
        asked = steps()
        assert largest_difference(model, asked, await score_all(engine, asked)) < TOLERANCE_NATS

        abandoned = [asyncio.create_task(engine.score(step)) for step in stream(100)]
        await asyncio.sleep(0.1)
        for task in abandoned:
            task.cancel()
        await asyncio.gather(*abandoned, return_exceptions=True)
        for worker in workers:  # refused while anything is open there
            path = f"{worker.url}/flush_cache?timeout=5"
            flushed = await asyncio.to_thread(httpx.post, path, headers=AUTHORIZED, timeout=30)
            assert flushed.status_code == 200, flushed.text

        many = stream(120)
        running = asyncio.create_task(score_all(engine, many))
        await asyncio.sleep(0.1)
        assert not running.done()
        workers[0].kill()
        assert largest_difference(model, many, await running) < TOLERANCE_NATS

        workers[1].kill()
        async with asyncio.timeout(30):
            with pytest.raises(EngineUnavailable):
                await score_all(engine, many)
            await engine.wait_down()
        assert engine.state is EngineState.DOWN
    finally:
        await engine.close()
