"""How well the temperature laws hold the entropy of real generations, against a fixed temperature.

    python -m eval.runtime_sampling

The embedded model continues real passages. First at temperature 1; the mean entropy of those tokens
becomes the target, which is the fairest to the fixed temperature. Then the same prompts under `solve` and
`feedback`. For each law, over the tokens of all generations: the error of the sampled entropy (mean,
and root of the mean square), its variance, and the variance of the means of generations, with 95 %
intervals from resampling whole generations.

The paper claims 15 to 20 % less variance (arXiv 2603.03310); the target here is more than 50 %.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from eti_rank.engine.protocol import Generated, GenerationStep, Sampling
from eti_rank.engine.wire import DecodingControl, TemperatureControl
from eti_rank.models.reranker_model import prepare_model
from eti_rank.models.tokenization import PromptTokenizer
from eti_rank.settings import ModelSettings
from eval import beir, live, record

SEED, RESAMPLES = 20261201, 2000
BATCH = 8


def prompts(tokenizer: PromptTokenizer, count: int, tokens: int) -> list[tuple[int, ...]]:
    """The first tokens of passages."""
    collection = beir.collection("noveleval")
    texts = [document.full_text for document in collection.documents.values()]
    encoded = (tuple(encoding.ids[:tokens]) for encoding in tokenizer.texts(texts))
    return [ids for ids in encoded if len(ids) == tokens][:count]


def generate(
    ask: live.Ask, todo: list[tuple[int, ...]], new_tokens: int, control: DecodingControl
) -> list[Generated]:
    """One generation per prompt, some at a time."""
    found: list[Generated] = []
    for begin in range(0, len(todo), BATCH):
        steps = tuple(
            GenerationStep(
                step_id=f"{begin + n}",
                token_ids=ids,
                max_new_tokens=new_tokens,
                sampling=Sampling(temperature=1.0, ignore_eos=True),
                control=control,
            )
            for n, ids in enumerate(todo[begin : begin + BATCH])
        )
        done = ask(live.Load(steps))
        found += [result for result in done.results if isinstance(result, Generated)]
    return found


def sampled_entropies(generations: list[Generated]) -> np.ndarray:
    """Entropy of what each token was drawn from, [generations, tokens]."""
    return np.array(
        [
            [
                report.entropy_nats if report.sampled_entropy_nats is None else report.sampled_entropy_nats
                for report in generated.reports
            ]
            for generated in generations
        ]
    )


def figures_of(entropies: np.ndarray, target: float, random: np.random.Generator) -> dict[str, Any]:
    """Error and variance with intervals; whole generations are resampled, for tokens of one hang together."""

    def measures(rows: np.ndarray) -> np.ndarray:
        error = rows - target
        return np.array([error.mean(), np.sqrt((error**2).mean()), rows.var(), rows.mean(axis=1).var()])

    drawn = [
        measures(entropies[random.integers(len(entropies), size=len(entropies))]) for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    names = ("mean_error_nats", "rmse_nats", "variance_nats2", "variance_of_generation_means_nats2")
    return {
        name: {"value": float(value), "low": float(low[n]), "high": float(high[n])}
        for n, (name, value) in enumerate(zip(names, measures(entropies), strict=True))
    }


def raw(entropies: np.ndarray) -> dict[str, Any]:
    """What the figures are made of."""
    return {"entropies_nats": np.round(entropies, 3).tolist()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--new-tokens", type=int, default=48)
    given = parser.parse_args()
    model = prepare_model(ModelSettings())
    tokenizer = PromptTokenizer(Path(model.checkpoint) / "tokenizer.json", ())
    todo = prompts(tokenizer, given.prompts, 32)
    random = np.random.default_rng(SEED)
    figures: dict[str, Any] = {}
    settings = {"engine": {"generation": True}}
    with live.engines(model.checkpoint, settings, max_prompt_tokens=512) as asks:
        ask = asks["engine"]
        fixed = sampled_entropies(generate(ask, todo, given.new_tokens, DecodingControl()))
        target = float(fixed.mean())
        figures["fixed"] = figures_of(fixed, target, random) | raw(fixed)
        for law in ("feedback", "solve"):
            control = DecodingControl(temperature=TemperatureControl(law=law, target_nats=target))
            generations = generate(ask, todo, given.new_tokens, control)
            entropies = sampled_entropies(generations)
            figures[law] = figures_of(entropies, target, random) | raw(entropies)
            reports = [report for generated in generations for report in generated.reports]
            if law == "solve":
                figures[law]["reached"] = float(np.mean([bool(report.reached) for report in reports]))
            ratio = entropies.var() / fixed.var()
            figures[law]["variance_reduction"] = float(1 - ratio)
            print(law, {key: value for key, value in figures[law].items() if "entropies" not in key})
    record.write_section(
        "runtime",
        "sampling",
        {"target_nats": target, "prompts": len(todo), "new_tokens": given.new_tokens, **figures},
        "python -m eval.runtime_sampling",
    )
    print("target", target)


if __name__ == "__main__":
    main()
