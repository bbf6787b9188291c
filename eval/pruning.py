"""What leaving out blocks of a long prompt saves, and what it changes.

    python -m eval.pruning

The embedded model reads contexts of some 4,000 tokens (passages of a collection, then one of its
questions) and continues them greedily.

- **Drift** (`pruning_drift`): the next-token distribution with a share of the blocks left out, against the
  dense one on the same tokens, over the whole vocabulary; several ways to choose the blocks.
- **Time**, in the real runtime: seconds per decoding step, from generations of the same context of one
  and of more tokens, on SGLang's own backend and on ours. Attention's time is what a step takes beyond one
  with hardly any context in the same engine. The first token of a cached prompt shows what an extend
  behind a prefix costs: SGLang's own backend computes the prefix's queries again.
- **Answers**, in the real runtime: how far the greedy continuation follows the dense one.

Target on a CPU: at 25 % kept, attention takes at most .4 of its dense time with KL below .05 nats.
"""

import argparse
import itertools
import os
import statistics
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from eti_rank.engine.protocol import Generated, GenerationStep, Sampling
from eti_rank.engine.wire import DecodingControl, PruningControl
from eti_rank.models.reranker_model import prepare_model
from eti_rank.settings import ModelSettings
from eval import beir, live, pruning_drift, record
from eval.pruning_drift import FIRST_TOKENS, LAST_TOKENS, NO_LIMIT, WINDOW, Drift

FRACTIONS = (0.75, 0.5, 0.35, 0.25, 0.15, 0.1)
SOURCES = ("none", "unigram", "model", "per_layer", "recent", "random")
LIMITS = (0.01, 0.02, 0.05, 0.1, 0.2)
ANSWERED = (1.0, 0.75, 0.5, 0.25, 0.1)
BLOCK, FINE_BLOCK, SHORT_TOKENS, SEED = 16, 4, 32, 20261201
TARGET_FRACTION, TARGET_TIME, TARGET_KL_NATS = 0.25, 0.4, 0.05
COMMAND = "python -m eval.pruning"
"""The curve goes to ``pruning.json``, the figures at the target to ``runtime.json``."""
ENGINES = {
    "sglang": {"generation": True, "hooks": ["sampling"]},
    "ours": {"generation": True, "hooks": ["sampling", "attention"]},
}


def contexts(tokenizer: Tokenizer, count: int, tokens: int) -> list[tuple[int, ...]]:
    """Passages up to so many tokens with the question, one context per question of the collection."""
    collection, made = beir.collection("noveleval"), []
    every = [document.full_text for document in collection.documents.values()]
    for query_id, query in itertools.islice(collection.queries.items(), count):
        own = [document.full_text for document in collection.candidates(query_id, 20)]
        others = [text for text in every if text not in own]
        text = "\n\n".join(f"[{n + 1}] {passage}" for n, passage in enumerate([*own, *others]))
        tail = f"\n\nQuestion: {query}\nAnswer from the passages.<|im_end|>\n<|im_start|>assistant\n"
        head, end = tokenizer.encode(f"<|im_start|>user\n{text}").ids, tokenizer.encode(tail).ids
        made.append((*head[: tokens - len(end)], *end))
    return made


def drifts(checkpoint: str, todo: Sequence[tuple[int, ...]], steps: int) -> tuple[list[Any], list[float]]:
    """One row per way of choosing and share kept; and the entropy of the runtime's first pruned step."""
    model, random = pruning_drift.load(checkpoint), np.random.default_rng(SEED)
    found: dict[tuple[str, int, float], list[Drift]] = {}
    for number, context in enumerate(todo):
        base = pruning_drift.dense(model, context, steps)
        cases = {("everything", BLOCK, 1.0): (np.ones((len(base.attention), len(context)), dtype=bool), 0.0)}
        for source, share in itertools.product(SOURCES, FRACTIONS):
            cases[source, BLOCK, share] = pruning_drift.select(base, source, share, BLOCK, random)
        for share in FRACTIONS:
            cases["none", FINE_BLOCK, share] = pruning_drift.select(base, "none", share, FINE_BLOCK, random)
        for limit in LIMITS:
            mean = base.attention.mean(axis=(0, 1))
            seen, mass = pruning_drift.keep(mean, None, BLOCK, 0.0, limit)
            cases["dropped_mass_limit", BLOCK, limit] = np.tile(seen, (len(base.attention), 1)), mass
        for case, (seen, mass) in cases.items():
            found.setdefault(case, []).append(pruning_drift.drift(model, base, seen, mass))
        print(number, {case: round(rows[-1].kl_nats, 4) for case, rows in found.items()}, flush=True)
    rows = [
        {"chosen_by": source, "block_tokens": block, "at": at, **_summary(every)}
        for (source, block, at), every in found.items()
    ]
    return rows, [row.first_entropy_nats for row in found["none", BLOCK, TARGET_FRACTION]]


def _summary(rows: Sequence[Drift]) -> dict[str, Any]:
    names = [field.name for field in fields(Drift) if field.name != "first_entropy_nats"]
    means = {name: round(float(np.mean([getattr(row, name) for row in rows])), 6) for name in names}
    return means | {"kl_nats_by_context": [round(row.kl_nats, 5) for row in rows]}


def generation(context: tuple[int, ...], tokens: int, share: float | None) -> live.Load:
    """A greedy continuation with a share of the blocks kept at every step; None does not ask for pruning."""
    asked = None
    if share is not None:
        asked = PruningControl(
            block_tokens=BLOCK,
            window_tokens=WINDOW,
            refresh_steps=1_000_000,
            confident_theta=0.0 if share == 1.0 else 1e9,
            low_nats=1e6,
            high_nats=2e6,
            first_blocks=FIRST_TOKENS // BLOCK,
            last_blocks=LAST_TOKENS // BLOCK,
            min_blocks=round(share * -(-len(context) // BLOCK)),
            max_dropped_mass=NO_LIMIT,
        )
    step = GenerationStep(
        step_id="one",
        token_ids=context,
        max_new_tokens=tokens,
        sampling=Sampling(temperature=0.0, ignore_eos=True),
        control=DecodingControl(pruning=asked),
    )
    return live.Load((step,), cold=False)


def first_and_step(
    ask: live.Ask, context: tuple[int, ...], tokens: int, share: float | None
) -> tuple[float, float]:
    """Seconds of the first token, its prompt cached, and of each of so many after it."""
    first = ask(generation(context, 1, share)).makespan_s
    return first, (ask(generation(context, tokens + 1, share)).makespan_s - first) / tokens


def times(asks: dict[str, live.Ask], context: tuple[int, ...], tokens: int, rounds: int) -> dict[str, Any]:
    """Seconds per step by engine and share, all in turn in each round; medians, and attention alone."""
    cases: dict[str, tuple[live.Ask, tuple[int, ...], float | None]] = {
        f"{name} {kind}": (ask, ids, None)
        for name, ask in asks.items()
        for kind, ids in (("short", context[-SHORT_TOKENS:]), ("dense", context))
    }
    cases |= {f"ours {share}": (asks["ours"], context, share) for share in FRACTIONS}
    for ask in asks.values():
        ask(generation(context, 1, None))
    found: dict[str, list[float]] = {name: [] for name in cases}
    first: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, (ask, ids, share) in cases.items():
            begun, step_s = first_and_step(ask, ids, tokens, share)
            first[name].append(begun)
            found[name].append(step_s)
        print(number, {name: round(seconds[-1] * 1e3, 1) for name, seconds in found.items()}, flush=True)
    step = {name: statistics.median(seconds) for name, seconds in found.items()}
    attention = {name: step[name] - step[f"{name.split()[0]} short"] for name in step if "short" not in name}
    ratios = {name: round(seconds / attention["sglang dense"], 4) for name, seconds in attention.items()}
    against_own = {name: round(seconds / attention["ours dense"], 4) for name, seconds in attention.items()}
    return {
        "step_ms": {name: round(seconds * 1e3, 2) for name, seconds in step.items()},
        "step_ms_by_round": {name: [round(s * 1e3, 2) for s in seconds] for name, seconds in found.items()},
        "first_token_of_cached_prompt_s": {
            name: round(statistics.median(seconds), 3) for name, seconds in first.items()
        },
        "attention_ms": {name: round(seconds * 1e3, 2) for name, seconds in attention.items()},
        "attention_of_sglang_dense": ratios,
        "attention_of_our_dense": against_own,
    }


def answers(
    ask: live.Ask, todo: Sequence[tuple[int, ...]], tokens: int, expected_nats: Sequence[float]
) -> dict[str, Any]:
    """How far greedy answers follow the dense one, and whether the runtime prunes as the study does."""
    rows: dict[float, list[dict[str, float]]] = {share: [] for share in ANSWERED}
    differences = []
    for context, expected in zip(todo, expected_nats, strict=True):
        dense = _result(ask(generation(context, tokens, None)))
        for share in ANSWERED:
            pruned = _result(ask(generation(context, tokens, share)))
            same = [a == b for a, b in zip(dense.token_ids, pruned.token_ids, strict=True)]
            common = same.index(False) if False in same else tokens
            kept = pruned.reports[1].kept_fraction or 0.0
            rows[share].append({"common_tokens": common, "same": all(same), "kept_fraction": kept})
            if share == TARGET_FRACTION:
                differences.append(abs((pruned.reports[1].entropy_nats or 0.0) - expected))
    found = [
        {"share": share, **{key: float(np.mean([row[key] for row in every])) for key in every[0]}}
        for share, every in rows.items()
    ]
    return {"rows": found, "entropy_difference_to_study_nats": max(differences)}


def _result(done: live.Done) -> Generated:
    (result,) = done.results
    assert isinstance(result, Generated)
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contexts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4000, help="of a context")
    parser.add_argument("--steps", type=int, default=48, help="tokens of a continuation")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    checkpoint = prepare_model(ModelSettings()).checkpoint
    todo = contexts(
        Tokenizer.from_file(str(Path(checkpoint) / "tokenizer.json")), given.contexts, given.tokens
    )
    about = {"contexts": [len(context) for context in todo], "steps": given.steps}
    curve, entropies = drifts(checkpoint, todo, given.steps)
    record.write_section("pruning", "drift", {**about, "rows": curve}, COMMAND)
    settings = {name: {**chosen, "threads": 1} for name, chosen in ENGINES.items()}
    with live.engines(checkpoint, settings, max_prompt_tokens=given.tokens + given.steps + 64) as asks:
        before = os.getloadavg()
        time_of = times(asks, todo[0], 32, given.rounds)
        load = {"before": before, "after": os.getloadavg()}
        record.write_section("pruning", "time", {**about, "load_average": load, **time_of}, COMMAND)
        answered = answers(asks["ours"], todo, given.steps, entropies)
        record.write_section("pruning", "answers", {**about, **answered}, COMMAND)
    (at_target,) = (
        row
        for row in curve
        if (row["chosen_by"], row["block_tokens"], row["at"]) == ("none", BLOCK, TARGET_FRACTION)
    )
    target = {
        "share": TARGET_FRACTION,
        "attention_of_sglang_dense": time_of["attention_of_sglang_dense"][f"ours {TARGET_FRACTION}"],
        "attention_of_our_dense": time_of["attention_of_our_dense"][f"ours {TARGET_FRACTION}"],
        "wanted_at_most": TARGET_TIME,
        "kl_nats": at_target["kl_nats"],
        "wanted_below_nats": TARGET_KL_NATS,
    }
    record.write_section("runtime", "pruning", target, COMMAND)
    print(target, answered, sep="\n")


if __name__ == "__main__":
    main()
