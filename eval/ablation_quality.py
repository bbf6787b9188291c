"""The quality column of `eval.ablation` with more explanations: what pruning and sampling do to their words.

    python -m eval.ablation_quality

A load has four explanations of 40 tokens, so the share of their words that stand in the context is mostly
chance: in the table scheduling seems to change it, which cannot change a single token. Here every context
is explained many times in each of the four combinations of pruning and sampling, on one engine, without a
clock. Ratios of means to neither, with 95 % intervals from resampling contexts.
"""

import argparse
import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np

from eti_rank.engine.protocol import Generated
from eti_rank.engine.wire import TemperatureControl
from eti_rank.models.reranker_model import prepare_model
from eti_rank.settings import ModelSettings
from eval import ablation, live, record

SEED, RESAMPLES = 20261201, 5000
ENGINE: dict[str, dict[str, Any]] = {
    "engine": {"generation": True, "hooks": ["scheduling", "sampling", "attention"]}
}


def groundednesses(
    ask: live.Ask, work: ablation.Work, arm: ablation.Arm, control: TemperatureControl, samples: int
) -> list[list[float]]:
    """Per context of a load, the groundedness of each of its explanations."""
    load = ablation.load(0, work, arm, control if arm.sampling else None)
    explaining = load.steps[: len(work.explanations)]
    steps = tuple(
        replace(step, step_id=f"{step.step_id}-{sample}") for step in explaining for sample in range(samples)
    )
    done = ask(live.Load(steps, cold=False))
    texts = [result.text for result in done.results if isinstance(result, Generated)]
    per_context = len(texts) // len(work.contexts)
    return [
        [ablation.groundedness(text, context) for text in texts[n * per_context : (n + 1) * per_context]]
        for n, context in enumerate(work.contexts)
    ]


def ratio(ours: np.ndarray, base: np.ndarray, random: np.random.Generator) -> dict[str, float]:
    """Ratio of means over contexts [C], with its interval from resampling them in pairs."""
    chosen = random.integers(len(ours), size=(RESAMPLES, len(ours)))
    drawn = ours[chosen].mean(1) / base[chosen].mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"ratio": float(ours.mean() / base.mean()), "low": float(low), "high": float(high)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4, help="of each explanation")
    given = parser.parse_args()
    model = prepare_model(ModelSettings())
    recorded = json.loads((record.RESULTS / "ablation.json").read_text(encoding="utf-8"))
    control = TemperatureControl(
        law="solve", target_nats=recorded["target_nats"], start=ablation.FIXED_TEMPERATURE
    )
    arms = [ablation.Arm(True, *each) for each in itertools.product((False, True), repeat=2)]
    found: dict[ablation.Arm, list[list[float]]] = {arm: [] for arm in arms}
    with live.engines(model.checkpoint, ENGINE, max_prompt_tokens=2040) as asks:
        for number, work in enumerate(ablation.works(model, given.loads)):
            for arm in arms:
                found[arm] += groundednesses(asks["engine"], work, arm, control, given.samples)
            print(number, {f"{a.pruning} {a.sampling}": np.mean(found[a]).round(3) for a in arms}, flush=True)
    means = {arm: np.mean(found[arm], axis=1) for arm in arms}
    random = np.random.default_rng(SEED)
    rows = [
        {
            "pruning": arm.pruning,
            "sampling": arm.sampling,
            **ratio(means[arm], means[arms[0]], random),
            "groundedness": float(means[arm].mean()),
            "by_context": [[round(value, 3) for value in values] for values in found[arm]],
        }
        for arm in arms
    ]
    for row in rows:
        print({key: value for key, value in row.items() if key != "by_context"})
    command = f"python -m eval.ablation_quality --loads {given.loads} --samples {given.samples}"
    record.write_section("ablation_quality", "groundedness", {"rows": rows}, command)


if __name__ == "__main__":
    main()
