"""Time of one decision: the expected gain of every level of every document.

    OMP_NUM_THREADS=1 python -m eval.bench_value

Writes `eval/results/value_speed.json`. Before anything is timed the closed form is compared with sampling; a
wrong answer is not worth timing. Target: 1,000 documents x 3 levels in under 5 ms on one core.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from eti_rank.control.membership import membership
from eti_rank.control.posterior import LevelNoise, Posterior, from_prior, mean_shift_sd, update
from eti_rank.control.value import Label, Utility, expected_gain, knowledge_gradient

RESULT = Path(__file__).parent / "results" / "value_speed.json"
SEED = 20261201
DOCUMENTS, LEVELS, K = 1000, 3, 10
WARM_UPS, RUNS = 20, 200
TARGET_MS = 5.0
LABEL = Label(threshold=0.0, blur=0.6)
NOISE = LevelNoise(np.array([1.0, 0.6, 0.3]), 0.2)


def main() -> None:
    """Check, time, print and write."""
    random = np.random.default_rng(SEED)
    belief = half_skimmed(random)
    check_against_sampling(belief, random)
    operations: dict[str, Callable[[], object]] = {
        f"expected_gain {utility}": partial(expected_gain, belief, NOISE, utility, k=K, label=LABEL)
        for utility in Utility
    }
    operations["update of one result"] = lambda: update(belief, NOISE, document=7, level=1, score=0.5)
    operations["membership (once per answer)"] = lambda: membership(belief.mean, belief.sd, k=K)
    rows: list[dict[str, Any]] = [
        {"operation": name, **timed(operation)} for name, operation in operations.items()
    ]
    for row in rows:
        print(f"{row['operation']:32s} median {row['median_ms']:7.3f} ms   p95 {row['p95_ms']:7.3f} ms")
    gains = [row["median_ms"] for row in rows if row["operation"].startswith("expected_gain")]
    print(f"target {TARGET_MS} ms per decision: {'met' if max(gains) < TARGET_MS else 'MISSED'}")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"setting": setting(), "rows": rows}) + "\n")


def half_skimmed(random: np.random.Generator) -> Posterior:
    """[DOCUMENTS] beliefs, half of them with their first level asked."""
    half = DOCUMENTS // 2
    belief = from_prior(random.normal(0, 1, DOCUMENTS), 1.0, levels=LEVELS)
    return update(
        belief, NOISE, document=np.arange(half), level=np.zeros(half, int), score=random.normal(0, 1.4, half)
    )


def check_against_sampling(belief: Posterior, random: np.random.Generator) -> None:
    """Exit unless the gain of the most valuable step is within 5 standard errors of 20,000 samples."""
    shift = mean_shift_sd(belief, NOISE)
    closed = knowledge_gradient(belief.mean, shift, k=K)
    document, level = np.unravel_index(closed.argmax(), closed.shape)
    others = -np.sort(-np.delete(belief.mean, document))[: K + 1]
    moved = belief.mean[document] + shift[document, level] * random.normal(size=20_000)
    discounts = 1 / np.log2(np.arange(2, K + 2))
    lists = -np.sort(-np.column_stack([np.tile(others, (moved.size, 1)), moved]), axis=1)[:, :K]
    now = -np.sort(-belief.mean)[:K] @ discounts
    gain = lists @ discounts - now
    error = gain.std() / np.sqrt(gain.size)
    if abs(gain.mean() - closed[document, level]) > 5 * error:
        sys.exit(f"closed form {closed[document, level]:.6f}, sampled {gain.mean():.6f} +- {error:.6f}")


def timed(operation: Callable[[], object]) -> dict[str, float | list[float]]:
    """Milliseconds of RUNS calls, one by one."""
    for _ in range(WARM_UPS):
        operation()
    times_ms = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        operation()
        times_ms.append((time.perf_counter() - begin) * 1e3)
    return {
        "median_ms": round(float(np.median(times_ms)), 4),
        "p95_ms": round(float(np.quantile(times_ms, 0.95)), 4),
        "times_ms": [round(value, 4) for value in times_ms],
    }


def setting() -> dict[str, object]:
    """What the figures were taken on."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "documents": DOCUMENTS, "levels": LEVELS, "k": K, "seed": SEED, "warm_ups": WARM_UPS, "runs": RUNS,
        "target_ms": TARGET_MS, "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "cpu": names[0].split(":")[1].strip() if names else platform.processor(),
        "python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__,
    }  # fmt: skip


if __name__ == "__main__":
    main()
