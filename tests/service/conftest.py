"""The application on the scripted engine, in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest_asyncio

from eti_rank.engine.protocol import Engine, EngineState
from eti_rank.service.app import create_app
from eti_rank.service.backend import Backend, assemble
from eti_rank.settings import EngineSettings, LimitSettings, Settings
from tests.rerank_double import DoubleModel, scripted_engine


@dataclass
class Served:
    """A running application and what is behind it."""

    client: httpx.AsyncClient
    backend: Backend
    engines: list[Engine]

    async def reach(self, state: EngineState) -> None:
        async with asyncio.timeout(2.0):
            while self.backend.engine.state is not state:
                await asyncio.sleep(0.001)

    async def rerank(self, documents: list, **fields: object) -> httpx.Response:
        return await self.client.post("/rerank", json={"query": "q", "documents": documents} | fields)


Serve = Callable[..., Awaitable[Served]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts applications; they end with the test."""
    async with AsyncExitStack() as stack:

        async def start(
            make: Callable[[], Engine] = scripted_engine,
            model: DoubleModel | None = None,
            limits: LimitSettings | None = None,
            ready: bool = True,
            raise_errors: bool = True,
        ) -> Served:
            engines: list[Engine] = []

            def factory() -> Engine:
                engines.append(make())
                return engines[-1]

            settings = Settings(
                engine=EngineSettings(kind="scripted", restart_backoff_s=0.05),
                limits=limits or LimitSettings(),
            )
            backend = assemble(settings, model or DoubleModel(), factory)
            app = create_app(backend, settings.limits)
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app, raise_app_exceptions=raise_errors)
            client = httpx.AsyncClient(transport=transport, base_url="http://test")
            await stack.enter_async_context(client)
            served = Served(client, backend, engines)
            if ready:
                await served.reach(EngineState.READY)
            return served

        yield start
