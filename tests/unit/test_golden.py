import pytest

from eti_rank.errors import EngineUnavailable, ProfileError
from eti_rank.ranking.golden import check_golden_scores
from tests.rerank_double import UNREADABLE, DoubleModel, scripted_engine


async def test_matching_scores_pass() -> None:
    engine = scripted_engine()
    await engine.start()
    await check_golden_scores(
        engine, DoubleModel(golden=[("q", "a score=1.5", 1.5), ("q", "b score=-2", -2.0)])
    )


async def test_another_score_is_refused() -> None:
    engine = scripted_engine()
    await engine.start()
    with pytest.raises(ProfileError, match=r"1\.5000, not 1\.6"):
        await check_golden_scores(engine, DoubleModel(golden=[("q", "a score=1.5", 1.6)]))


async def test_a_pair_that_cannot_be_rendered_is_refused() -> None:
    engine = scripted_engine()
    await engine.start()
    with pytest.raises(ProfileError, match="golden pair 0"):
        await check_golden_scores(engine, DoubleModel(golden=[("q", UNREADABLE, 0.0)]))


async def test_an_engine_that_is_down_is_no_verdict() -> None:
    with pytest.raises(EngineUnavailable):
        await check_golden_scores(scripted_engine(), DoubleModel(golden=[("q", "a", 0.0)]))
