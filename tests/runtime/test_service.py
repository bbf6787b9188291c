"""The service on the real SGLang: the whole path, a crash below it, and a model that is not the profile's."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from eti_rank.engine.protocol import EngineState
from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.models.profile import load_profile
from eti_rank.models.reranker_model import RerankModel
from eti_rank.service.app import create_app
from eti_rank.service.backend import assemble
from eti_rank.settings import EngineSettings, ModelSettings, Settings

PROFILE = "smollm2-135m-instruct"
DOCUMENTS = [f"Document {n} says that the sea rises twice a day. " * (1 + n % 5) for n in range(24)]


@dataclass
class Served:
    """A running application on engines that are its own."""

    client: httpx.AsyncClient
    engines: list[SglangLocal]

    async def ask(self, documents: list[str], query: str = "what rises?") -> httpx.Response:
        return await self.client.post("/rerank", json={"query": query, "documents": documents})

    async def ready(self) -> httpx.Response:
        return await self.client.get("/readyz")

    async def until_ready(self, status: int) -> httpx.Response:
        async with asyncio.timeout(60):
            while (response := await self.ready()).status_code != status:
                await asyncio.sleep(0.02)
        return response


@asynccontextmanager
async def serving(checkpoint: Path, *, check_golden: bool = False) -> AsyncIterator[Served]:
    engine = EngineSettings(max_total_tokens=4096, max_running_requests=8, threads=1, restart_backoff_s=0.1)
    settings = Settings(engine=engine, model=ModelSettings(check_golden=check_golden))
    model = RerankModel(load_profile(PROFILE), str(checkpoint), checkpoint / "tokenizer.json")
    engines: list[SglangLocal] = []

    def factory() -> SglangLocal:
        engines.append(SglangLocal(settings.engine, model.checkpoint, 900))
        return engines[-1]

    app = create_app(assemble(settings, model, factory), settings.limits)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client,
    ):
        yield Served(client, engines)


def scores(response: httpx.Response) -> dict[int, float]:
    assert response.status_code == 200, response.text
    return {row["index"]: row["relevance_score"] for row in response.json()["results"]}


async def test_the_answer_is_the_same_alone_and_under_load(tiny_llama: Path) -> None:
    async with serving(tiny_llama) as served:
        assert (await served.client.get("/healthz")).status_code == 200
        await served.until_ready(200)
        alone = await served.ask(DOCUMENTS)
        others = [served.ask(DOCUMENTS[::-1], query=f"question {n}?") for n in range(3)]
        loaded, *_ = await asyncio.gather(served.ask(DOCUMENTS), *others)
        tolerance = alone.json()["meta"]["noise_floor"]
        assert scores(alone).keys() == set(range(len(DOCUMENTS)))
        assert all(abs(scores(alone)[i] - scores(loaded)[i]) <= tolerance for i in range(len(DOCUMENTS)))
        assert loaded.json()["usage"]["cached_tokens"] > alone.json()["usage"]["cached_tokens"]


async def test_a_crash_below_fails_the_request_and_the_service_comes_back(tiny_llama: Path) -> None:
    async with serving(tiny_llama) as served:
        await served.until_ready(200)
        before = scores(await served.ask(DOCUMENTS))
        running = asyncio.create_task(served.ask([f"{n} {text}" for n in range(80) for text in DOCUMENTS]))
        await asyncio.sleep(0.3)
        assert not running.done()
        os.kill(served.engines[0].process_ids[0], signal.SIGKILL)
        response = await asyncio.wait_for(running, timeout=5)
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "not_ready"
        assert (await served.ready()).status_code == 503
        await served.until_ready(200)
        after = scores(await served.ask(DOCUMENTS))
        assert max(abs(before[i] - after[i]) for i in before) < 1e-4
        engine = (await served.client.get("/info")).json()["engine"]
        assert (engine["restarts"], engine["state"]) == (1, "ready")


async def test_another_model_under_the_profile_is_not_served(tiny_llama: Path) -> None:
    async with serving(tiny_llama, check_golden=True) as served:
        async with asyncio.timeout(60):
            while "does not fit" not in (response := await served.ready()).text:
                assert response.status_code == 503
                await asyncio.sleep(0.02)
        assert (await served.ask(["a"])).status_code == 503
        assert len(served.engines) == 1
        assert served.engines[0].state is EngineState.CLOSED
