"""Engines on fake workers, with short intervals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from eti_rank.engine.protocol import Labels, Likelihood, ScoringStep
from eti_rank.engine.sglang_remote import SglangRemote
from eti_rank.settings import EngineSettings
from tests.fake_worker import FakeWorker, write_config

MAX_PROMPT_TOKENS = 256
QUICK: dict[str, Any] = {
    "connect_timeout_s": 1.0,
    "step_timeout_s": 20.0,
    "deadline_s": 30.0,
    "backoff_s": 0.01,
    "health_interval_s": 0.05,
    "health_timeout_s": 5.0,
    "down_after_s": 0.2,
}
"""Silence is told from slowness only where a test says so: the machine may be busy."""


def engine_on(
    folder: Path, *workers: FakeWorker, plugin: bool = True, architecture: str | None = None, **remote: Any
) -> SglangRemote:
    """A new engine on these workers."""
    checkpoint = write_config(folder, architecture) if architecture else write_config(folder)
    chosen = QUICK | {"urls": [worker.url for worker in workers]} | remote
    settings = EngineSettings.model_validate({"kind": "sglang_remote", "plugin": plugin, "remote": chosen})
    return SglangRemote(settings, checkpoint, MAX_PROMPT_TOKENS)


@asynccontextmanager
async def started(folder: Path, *workers: FakeWorker, **options: Any) -> AsyncIterator[SglangRemote]:
    """An engine that is ready, and closed afterwards."""
    engine = engine_on(folder, *workers, **options)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def step(
    number: int = 0, *, shared: int = 0, length: int = 20, readout: Labels | Likelihood | None = None
) -> ScoringStep:
    """Steps with the same number are alike; all begin with the same four tokens."""
    own = tuple(1000 * (number + 1) + position for position in range(length - 4))
    return ScoringStep(
        step_id=f"s{number}",
        token_ids=(7, 8, 9, 10, *own),
        readout=readout or Labels((5, 6)),
        shared_prefix_tokens=shared,
    )
