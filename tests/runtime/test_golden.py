"""A model that is not the profile's is refused by the real engine's own scores."""

from pathlib import Path

import pytest

from eti_rank.engine.protocol import EngineState
from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.errors import ProfileError
from eti_rank.models.profile import load_profile
from eti_rank.models.reranker_model import RerankModel
from eti_rank.service.backend import assemble
from eti_rank.settings import EngineSettings, Settings

PROFILE = "smollm2-135m-instruct"


async def test_another_model_under_the_profile_is_not_served(tiny_llama: Path) -> None:
    settings = Settings(engine=EngineSettings(max_total_tokens=4096, max_running_requests=8, threads=1))
    model = RerankModel(load_profile(PROFILE), str(tiny_llama), tiny_llama / "tokenizer.json")
    engines: list[SglangLocal] = []

    def factory() -> SglangLocal:
        engines.append(SglangLocal(settings.engine, model.checkpoint, 900))
        return engines[-1]

    engine = assemble(settings, model, factory).engine
    try:
        with pytest.raises(ProfileError, match="does not fit this model"):
            await engine.start()
        assert "does not fit this model" in engine.reason
        await engine.wait_down()
    finally:
        await engine.close()
    assert [one.state for one in engines] == [EngineState.CLOSED]
