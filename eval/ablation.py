"""The paper's table, measured: scheduling, pruning and sampling control, each on or off, on one workload.

    python -m eval.ablation --repetitions 6

One load is what a user of a search page causes: two questions, 12 documents of each to rerank, and at the
same time four explanations, two over each question's documents joined to one long context. All arrives
at once. Eight arms take turns on the same load, with a cold cache:

- scheduling: our order of the queue and the warming of shared prefixes, against SGLang's own (fcfs);
- pruning: the backend `eti_torch`, and explanations that leave out blocks, against `torch_native`;
- sampling: explanations under `solve`, against a fixed temperature of the same mean entropy.

The sampling hook measures in all arms, or there would be no entropic time to compare; what it costs is in
`eval.runtime_overhead`. Columns, as in the paper (arXiv 2603.03310), as ratios to the arm with all three
off, load by load; the mean of logarithms with its 95 % interval (Student's t over the loads):

- latency: mean time from arrival to the last token or score, over the six requests;
- throughput: loads per second, the whole load being one;
- efficiency: entropic time of the explanations per second of the engine (d tau / d C);
- quality: mean of nDCG@10 of the rankings, and, of the explanations, the share of their words of four or
  more letters that stand in the context.
"""

import argparse
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from ir_measures import ScoredDoc
from scipy import stats

from eti_rank.engine.protocol import (
    Evidence,
    Generated,
    GenerationStep,
    Likelihood,
    Sampling,
    ScoringStep,
)
from eti_rank.engine.wire import DecodingControl, PruningControl, TemperatureControl
from eti_rank.models.prompt import Prompt
from eti_rank.models.reranker_model import RerankModel, prepare_model
from eti_rank.models.tokenization import PromptTokenizer
from eti_rank.settings import ModelSettings
from eval import ablation_report, beir, live, measures, record

COLUMNS = ("latency", "throughput", "efficiency", "quality")
FACTORS = ("scheduling", "pruning", "sampling")
QUESTIONS, DOCUMENTS, DOCUMENT_TOKENS, CONTEXT_TOKENS, NEW_TOKENS = 2, 12, 64, 1400, 40
FIXED_TEMPERATURE = 0.7
TASKS = (
    "Explain in two sentences what these passages say about it.",
    "Which passage answers it best, and why?",
)
OPEN, CLOSE = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
PRUNING = PruningControl(confident_theta=1.0, low_nats=0.5, high_nats=6.0, max_dropped_mass=0.25)
SCORING_GAIN, EXPLANATION_GAIN = 0.7, 3.0
"""Nats expected of one step: a label's entropy, and the entropic time of an explanation."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Which parts are on."""

    scheduling: bool
    pruning: bool
    sampling: bool

    @property
    def engine(self) -> str:
        """Sampling is asked for by request; the other two belong to an engine."""
        return f"{int(self.scheduling)}{int(self.pruning)}"


ARMS = [Arm(*each) for each in itertools.product((False, True), repeat=3)]


@dataclass(frozen=True, slots=True)
class Work:
    """One load before it is known which arm runs it."""

    query_ids: tuple[str, ...]
    doc_ids: tuple[tuple[str, ...], ...]
    """Per question, in the order of the prompts."""
    prompts: tuple[tuple[Prompt, ...], ...]
    contexts: tuple[str, ...]
    explanations: tuple[tuple[int, ...], ...]
    """Prompts, task by task of each context."""
    instruction_tokens: tuple[int, ...]
    """How many tokens follow the context in each of them."""


def engine_settings() -> dict[str, dict[str, Any]]:
    """The four engines."""
    found = {}
    for scheduling, pruning in itertools.product((False, True), repeat=2):
        hooks = [*(["scheduling"] if scheduling else []), "sampling", *(["attention"] if pruning else [])]
        found[Arm(scheduling, pruning, False).engine] = {
            "generation": True,
            "hooks": hooks,
            "max_running_requests": 8,
        }
    return found


def works(model: RerankModel, count: int) -> list[Work]:
    """Loads of questions that never come twice, with the documents that BM25 found for them."""
    collection = beir.collection("noveleval")
    tokenizer = PromptTokenizer(Path(model.checkpoint) / "tokenizer.json", (OPEN, CLOSE))
    ids = list(collection.queries)
    pairs = [tuple(ids[begin : begin + QUESTIONS]) for begin in range(0, len(ids) - 1, QUESTIONS)]
    return [work(model, tokenizer, collection, pair) for pair in pairs[:count]]


def work(
    model: RerankModel, tokenizer: PromptTokenizer, collection: beir.Collection, query_ids: tuple[str, ...]
) -> Work:
    """The load of some questions."""
    doc_ids, prompts, contexts, explanations, instructions = [], [], [], [], []
    for query_id in query_ids:
        query = collection.queries[query_id]
        found = [row.doc_id for row in collection.run[query_id][:DOCUMENTS]]
        texts = [collection.documents[doc_id].full_text for doc_id in found]
        rendered = model.renderer.render(query, texts, max_document_tokens=DOCUMENT_TOKENS)
        doc_ids.append(tuple(found))
        prompts.append(tuple(prompt for prompt in rendered if isinstance(prompt, Prompt)))
        context = "\n\n".join(texts)
        contexts.append(context)
        head = [*tokenizer.fixed(OPEN), *tokenizer.text(context).ids[:CONTEXT_TOKENS]]
        for task in TASKS:
            tail = [*tokenizer.text(f"\n\nQuestion: {query}\n{task}").ids, *tokenizer.fixed(CLOSE)]
            explanations.append((*head, *tail))
            instructions.append(len(tail))
    return Work(
        query_ids,
        tuple(doc_ids),
        tuple(prompts),
        tuple(contexts),
        tuple(explanations),
        tuple(instructions),
    )


def load(number: int, work: Work, arm: Arm, control: TemperatureControl | None) -> live.Load:
    """The steps of a load; explanations and scores arrive mixed."""
    scoring = [
        ScoringStep(
            step_id=f"{number}-{question}-{n}",
            token_ids=prompt.token_ids,
            readout=Likelihood(prompt.likelihood_start),
            expected_gain=SCORING_GAIN,
            shared_prefix_tokens=prompt.likelihood_start,
        )
        for question, prompts in enumerate(work.prompts)
        for n, prompt in enumerate(prompts)
    ]
    explaining = [
        GenerationStep(
            step_id=f"{number}-e{n}",
            token_ids=ids,
            max_new_tokens=NEW_TOKENS,
            sampling=Sampling(temperature=FIXED_TEMPERATURE, ignore_eos=True),
            control=DecodingControl(
                temperature=control,
                pruning=pruning_of(len(ids), instruction) if arm.pruning else None,
            ),
            expected_gain=EXPLANATION_GAIN,
            shared_prefix_tokens=len(ids) - instruction,
        )
        for n, (ids, instruction) in enumerate(zip(work.explanations, work.instruction_tokens, strict=True))
    ]
    return live.Load((*explaining, *scoring))


def pruning_of(tokens: int, instruction: int) -> PruningControl:
    """The pruning of a prompt whose last tokens are question and task."""
    return replace(PRUNING, protected=((tokens - instruction, tokens),))


def columns(work: Work, done: live.Done) -> dict[str, float]:
    """The four figures of one run, not yet as ratios; and what they are made of."""
    explained = [
        (seconds, result)
        for seconds, result in zip(done.seconds, done.results, strict=True)
        if isinstance(result, Generated)
    ]
    scored = [
        (seconds, result)
        for seconds, result in zip(done.seconds, done.results, strict=True)
        if isinstance(result, Evidence)
    ]
    ranked_s, ndcg, begin = [], [], 0
    for query_id, doc_ids in zip(work.query_ids, work.doc_ids, strict=True):
        rows = scored[begin : begin + len(doc_ids)]
        begin += len(doc_ids)
        ranked_s.append(max(seconds for seconds, _ in rows))
        ndcg.append(ndcg_of(query_id, doc_ids, [result for _, result in rows]))
    grounded = [
        groundedness(result.text, work.contexts[n // len(TASKS)]) for n, (_, result) in enumerate(explained)
    ]
    kept = [1.0 if r.kept_fraction is None else r.kept_fraction for _, g in explained for r in g.reports]
    tau = sum(result.reports[-1].entropic_time_nats or 0.0 for _, result in explained)
    return {
        "latency": float(np.mean([*ranked_s, *(seconds for seconds, _ in explained)])),
        "throughput": 1 / done.makespan_s,
        "efficiency": tau / done.makespan_s,
        "quality": float(np.mean([*ndcg, *grounded])),
        "ranking_s": float(np.mean(ranked_s)),
        "explanation_s": float(np.mean([seconds for seconds, _ in explained])),
        "ndcg": float(np.mean(ndcg)),
        "groundedness": float(np.mean(grounded)),
        "tau_nats": tau,
        "kept_fraction": float(np.mean(kept)),
        "computed_tokens": float(sum(result.prompt_tokens - result.cached_tokens for result in done.results)),
    }


def ndcg_of(query_id: str, doc_ids: Sequence[str], found: Sequence[Evidence]) -> float:
    """nDCG@10 of the order by mean log-probability of the question."""
    qrels = beir.collection("noveleval").qrels
    run = [
        ScoredDoc(query_id, doc_id, float(np.mean(evidence.logprobs)))
        for doc_id, evidence in zip(doc_ids, found, strict=True)
    ]
    return measures.mean(measures.per_query(measures.NDCG, qrels, run))


def groundedness(text: str, context: str) -> float:
    """Share of the words of four or more letters that the context has too; 0 without any."""
    words = re.findall(r"[^\W\d_]{4,}", text.lower())
    known = set(re.findall(r"[^\W\d_]{4,}", context.lower()))
    return float(np.mean([word in known for word in words])) if words else 0.0


def target_entropy(ask: live.Ask, work: Work) -> float:
    """Mean entropy of what is sampled at the fixed temperature: what `solve` is to hold."""
    held = TemperatureControl(
        law="feedback",
        target_nats=1.0,
        low=FIXED_TEMPERATURE,
        high=FIXED_TEMPERATURE + 1e-6,
        start=FIXED_TEMPERATURE,
    )
    done = ask(load(-1, work, Arm(False, False, True), held))
    entropies = [
        report.sampled_entropy_nats or 0.0
        for result in done.results
        if isinstance(result, Generated)
        for report in result.reports
    ]
    return float(np.mean(entropies))


def ratio(ours: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Geometric mean of paired ratios with its 95 % interval."""
    logs = np.log(np.array(ours) / np.array(base))
    spread = stats.sem(logs) if len(logs) > 1 else 0.0
    half = float(stats.t.ppf(0.975, len(logs) - 1) * spread) if spread > 0 else 0.0
    middle = float(logs.mean())
    return {"": np.exp(middle), "_low": np.exp(middle - half), "_high": np.exp(middle + half)}


def table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per arm: which parts are on, and the four ratios with their intervals."""

    def series(arm: Arm, column: str) -> list[float]:
        return [run["columns"][column] for run in runs if run["arm"] == arm]

    rows = []
    for arm in ARMS:
        row: dict[str, Any] = {name: getattr(arm, name) for name in FACTORS}
        for column in COLUMNS:
            found = ratio(series(arm, column), series(ARMS[0], column))
            row |= {f"{column}{suffix}": round(float(value), 4) for suffix, value in found.items()}
        rows.append(row)
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=6)
    given = parser.parse_args()
    model = prepare_model(ModelSettings())
    warm_up, *todo = works(model, given.repetitions + 1)
    runs: list[dict[str, Any]] = []
    with live.engines(model.checkpoint, engine_settings(), max_prompt_tokens=2040) as asks:
        target = target_entropy(asks["00"], warm_up)
        solve = TemperatureControl(law="solve", target_nats=target, start=FIXED_TEMPERATURE)
        for name in list(asks)[1:]:
            asks[name](load(-1, warm_up, Arm(name[0] == "1", name[1] == "1", True), solve))
        for number, each in enumerate(todo):
            turn = ARMS[number % len(ARMS) :] + ARMS[: number % len(ARMS)]
            for arm in turn:
                done = asks[arm.engine](load(number, each, arm, solve if arm.sampling else None))
                runs.append({"load": number, "arm": arm, "columns": columns(each, done)})
                shown = {name: round(value, 3) for name, value in runs[-1]["columns"].items()}
                print(number, arm.engine, arm.sampling, shown, flush=True)
    rows = table(runs)
    command = f"python -m eval.ablation --repetitions {given.repetitions}"
    raw = [
        {"load": run["load"], **{name: getattr(run["arm"], name) for name in FACTORS}, **run["columns"]}
        for run in runs
    ]
    record.write("ablation", {"rows": rows, "target_nats": target, "runs": raw}, command)
    ablation_report.write(rows)


if __name__ == "__main__":
    main()
