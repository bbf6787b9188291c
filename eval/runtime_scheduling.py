"""Who finishes when, under our order of SGLang's queue and under its own (fcfs and lpm).

    python -m eval.runtime_scheduling

A stream that asks for more than the engine can do: every document comes with several questions, at random
times, so that prefixes repeat; a quarter of the steps are worth a hundred times as much as the others,
and a few requests generate. The three engines take turns on the same stream. Reported, per policy:
time from arrival to answer of the steps of high and of low gain (median, 95th percentile), the longest wait
against the bound of `control.priority`, and the throughput against fcfs.
"""

import argparse
import random
import statistics
from dataclasses import replace
from typing import Any

from eti_rank.control.priority import Ageing, waiting_bound_s
from eti_rank.engine.protocol import Evidence, GenerationStep, Likelihood, Sampling, ScoringStep
from eti_rank.engine.wire import SchedulingConfig
from eti_rank.models.prompt import Prompt
from eti_rank.models.reranker_model import RerankModel, prepare_model
from eti_rank.settings import ModelSettings
from eval import beir, live, record

SEED = 20261201
COMMON: dict[str, Any] = {"generation": True, "max_running_requests": 8}
ENGINES: dict[str, dict[str, Any]] = {
    "eti": COMMON | {"hooks": ["scheduling"]},
    "fcfs": COMMON | {"hooks": []},
    "lpm": COMMON | {"hooks": [], "schedule_policy": "lpm"},
}
HIGH, LOW = 10.0, 0.1
DOCUMENT_TOKENS, QUERIES, GENERATE_EVERY, NEW_TOKENS = 64, 3, 15, 12


def stream(model: RerankModel, number: int, documents: int, per_second: float) -> live.Load:
    """Every document with every query, shuffled, at the times of a Poisson process."""
    rng = random.Random(SEED + number)
    collection = beir.collection("noveleval")
    texts = [document.full_text for document in collection.documents.values()]
    queries = list(collection.queries.values())
    chosen = texts[number * documents : (number + 1) * documents]
    prompts = [
        prompt
        for query in queries[number * QUERIES : (number + 1) * QUERIES]
        for prompt in model.renderer.render(query, chosen, max_document_tokens=DOCUMENT_TOKENS)
        if isinstance(prompt, Prompt)
    ]
    rng.shuffle(prompts)
    steps = tuple(step(f"{number}-{n}", n, prompt) for n, prompt in enumerate(prompts))
    at_s, now = [], 0.0
    for _ in steps:
        now += rng.expovariate(per_second)
        at_s.append(now)
    return live.Load(steps, tuple(at_s))


def step(name: str, place: int, prompt: Prompt) -> live.Step:
    """A scoring step of high or low gain, or now and then a generation."""
    gain = HIGH if place % 4 == 0 else LOW
    if place % GENERATE_EVERY == GENERATE_EVERY - 1:
        return GenerationStep(
            step_id=name,
            token_ids=prompt.token_ids,
            max_new_tokens=NEW_TOKENS,
            sampling=Sampling(temperature=0.0, ignore_eos=True),
            expected_gain=gain,
            shared_prefix_tokens=prompt.likelihood_start,
        )
    return ScoringStep(
        step_id=name,
        token_ids=prompt.token_ids,
        readout=Likelihood(prompt.likelihood_start),
        expected_gain=gain,
        shared_prefix_tokens=prompt.likelihood_start,
    )


def tokens_of(done: live.Done) -> int:
    """Prompt tokens that were computed, of the scoring steps."""
    return sum(
        result.prompt_tokens - result.cached_tokens for result in done.results if isinstance(result, Evidence)
    )


def bound_s(load: live.Load, done: live.Done) -> float:
    """Longest wait that the law allows in this stream: all its work ahead, at the speed that was seen."""
    config = SchedulingConfig()
    gains = [each.expected_gain / len(each.token_ids) for each in load.steps]
    ageing = Ageing(ceiling=min(config.ceiling, max(gains)), per_second=config.ageing_per_second)
    work = sum(len(each.token_ids) for each in load.steps)
    return waiting_bound_s(ageing, work_ahead=work, rate=work / done.makespan_s)


def percentiles(values: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    return {
        "median_s": statistics.median(values),
        "p95_s": statistics.quantiles(values, n=20, method="inclusive")[-1],
    }


def figures_of(name: str, loads: list[live.Load], rows: list[dict[str, live.Done]]) -> dict[str, Any]:
    """All that is reported of one policy."""
    latencies: dict[float, list[float]] = {HIGH: [], LOW: []}
    within = True
    longest = 0.0
    for load, row in zip(loads, rows, strict=True):
        done = row[name]
        for each, at_s, end_s in zip(load.steps, load.at_s, done.seconds, strict=True):
            latencies[each.expected_gain].append(end_s - at_s)
            longest = max(longest, end_s - at_s)
            within &= end_s - at_s <= bound_s(load, done)
    against = [row["fcfs"].makespan_s / row[name].makespan_s for row in rows]
    return {
        "high_gain": percentiles(latencies[HIGH]),
        "low_gain": percentiles(latencies[LOW]),
        "longest_s": longest,
        "within_bound": within,
        "throughput_against_fcfs": {"median": statistics.median(against), "all": against},
        "latencies_s": {
            "high_gain": [round(value, 3) for value in latencies[HIGH]],
            "low_gain": [round(value, 3) for value in latencies[LOW]],
        },
        "computed_tokens": sum(tokens_of(row[name]) for row in rows),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--documents", type=int, default=30)
    parser.add_argument("--per-second", type=float, default=8.0)
    given = parser.parse_args()
    model = prepare_model(ModelSettings())
    loads = [stream(model, n, given.documents, given.per_second) for n in range(given.repetitions)]
    warm_up = replace(loads[0], steps=loads[0].steps[:4], at_s=loads[0].at_s[:4])
    with live.engines(model.checkpoint, ENGINES, max_prompt_tokens=512) as asks:
        live.in_turn(asks, [warm_up])
        rows = live.in_turn(asks, loads)
    figures = {name: figures_of(name, loads, rows) for name in ENGINES}
    for name, found in figures.items():
        print(name, {key: value for key, value in found.items() if key != "latencies_s"})
    record.write_section("runtime", "scheduling", figures, "python -m eval.runtime_scheduling")


if __name__ == "__main__":
    main()
