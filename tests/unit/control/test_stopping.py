"""Each reason to stop, in hand-made cases and in the long run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eti_rank.control.posterior import LevelNoise, from_prior, reach_sd, update
from eti_rank.control.stopping import StopReason, StopRule, settled, stop_reason
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=60)

OPEN: dict[str, Any] = {
    "mean": [1.0, 0.9, 0.0],
    "reach_sd": [0.5, 0.5, 0.5],
    "gain": [[0.2, 0.3], [0.2, 0.3], [0.01, 0.02]],
    "cost": [[1.0, 2.0]] * 3,
    "open_steps": [[True, True]] * 3,
    "spent": 0.0,
    "k": 1,
}


@pytest.mark.parametrize(
    ("rule", "change", "reason"),
    [
        pytest.param(StopRule(), {}, StopReason.NOT_YET, id="something to gain"),
        pytest.param(StopRule(), {"open_steps": [[False] * 2] * 3}, StopReason.COMPLETE, id="all asked"),
        pytest.param(StopRule(), {"reach_sd": [0.01] * 3}, StopReason.SETTLED, id="nobody can cross"),
        pytest.param(StopRule(), {"k": 3}, StopReason.SETTLED, id="nobody is outside"),
        pytest.param(StopRule(budget=5.0), {"spent": 4.5}, StopReason.BUDGET, id="no step fits"),
        pytest.param(StopRule(budget=5.0), {"spent": 4.0}, StopReason.NOT_YET, id="one step fits exactly"),
        pytest.param(StopRule(budget=0.0), {}, StopReason.BUDGET, id="no budget"),
        pytest.param(StopRule(price=0.21), {}, StopReason.PRICE, id="not worth it"),
        pytest.param(StopRule(price=0.2), {}, StopReason.NOT_YET, id="just worth it"),
        pytest.param(
            StopRule(price=0.15, budget=1.0),
            {"gain": [[0.1, 9.0]] * 3},
            StopReason.PRICE,
            id="what is worth it does not fit",
        ),
        pytest.param(
            StopRule(price=0.5),
            {"gain": [[9.0, 0.0]] * 3, "open_steps": [[False, True]] * 3},
            StopReason.PRICE,
            id="a closed step's gain does not count",
        ),
    ],
)
def test_reason(rule: StopRule, change: dict[str, Any], reason: StopReason) -> None:
    assert stop_reason(rule, **(OPEN | change)) is reason


@laws
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.floats(0.5, 4))
def test_confidence_only_ever_delays(seed: int, n: int, confidence_sds: float) -> None:
    random = np.random.default_rng(seed)
    mean, reach = random.normal(0, 5, n), random.uniform(0, 1, n)
    if settled(mean, reach, k=n // 2, confidence_sds=confidence_sds):
        assert settled(mean, reach / 2, k=n // 2, confidence_sds=confidence_sds)
        assert settled(mean, reach, k=n // 2, confidence_sds=confidence_sds / 2)


def test_settled_rankings_keep_their_set_when_everything_is_asked() -> None:
    """Of rankings settled at 3 sds, fewer than 1 in 100 change their k best when all else is asked."""
    random, noise, n, k = np.random.default_rng(5), LevelNoise(np.array([0.8, 0.2]), 0.3), 12, 3
    stopped = changed = 0
    for _ in range(3000):
        theta = random.normal(0, 8, n)
        answers = (theta + random.normal(0, 0.3, n))[:, None] + random.normal(0, 1, (n, 2)) * noise.level_sd
        skim = update(
            from_prior(np.zeros(n), 64.0, levels=2), noise,
            document=np.arange(n), level=np.zeros(n, int), score=answers[:, 0],
        )  # fmt: skip
        if not settled(skim.mean, reach_sd(skim, noise), k=k, confidence_sds=3.0):
            continue
        full = update(skim, noise, document=np.arange(n), level=np.ones(n, int), score=answers[:, 1])
        stopped += 1
        changed += set(np.argsort(-skim.mean)[:k]) != set(np.argsort(-full.mean)[:k])
    assert stopped > 100
    assert changed <= stopped / 100


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"cost": [[0.0, 1.0]] * 3}, id="an open step costs nothing"),
        pytest.param({"gain": [[-1.0, 1.0]] * 3}, id="negative gain"),
        pytest.param({"gain": [[1.0]] * 3}, id="shapes differ"),
        pytest.param({"spent": -1.0}, id="negative spending"),
        pytest.param({"k": 0}, id="no place"),
        pytest.param({"mean": [np.nan, 0.0, 0.0]}, id="NaN"),
    ],
)
def test_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(DomainError):
        stop_reason(StopRule(), **(OPEN | change))


@pytest.mark.parametrize(
    "limit", [{"budget": -1.0}, {"budget": np.nan}, {"price": -1.0}, {"confidence_sds": 0.0}]
)
def test_refuses_limits(limit: dict[str, float]) -> None:
    with pytest.raises(DomainError):
        StopRule(**limit)
