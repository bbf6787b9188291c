"""Real SGLang engines on small random-weight models. The first start imports SGLang, later ones fork."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.settings import EngineSettings
from tests.tiny_models import make_tiny_checkpoint

MAX_PROMPT_TOKENS = 512


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.runtime)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("models") / "llama", architecture="llama")


@asynccontextmanager
async def started(checkpoint: Path, **settings: Any) -> AsyncIterator[SglangLocal]:
    """An engine that is ready, and closed afterwards."""
    chosen = {"max_total_tokens": 4096, "max_running_requests": 8, "threads": 1} | settings
    engine = SglangLocal(EngineSettings.model_validate(chosen), str(checkpoint), MAX_PROMPT_TOKENS)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()
