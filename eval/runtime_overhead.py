"""What it costs to be there: SGLang with our plugin and nothing asked of it, against SGLang without it.

    python -m eval.runtime_overhead

Both engines get the same loads in turn: pairs to score, and 8 greedy generations at once. First their
answers must be equal, token for token and score for score; then pairs per second and tokens per second are
compared, load by load. Target: within 2 % of plain SGLang.
"""

import argparse
import statistics
from typing import Any

from eti_rank.engine.protocol import Evidence, Generated, GenerationStep, Likelihood, Sampling, ScoringStep
from eti_rank.models.prompt import Prompt
from eti_rank.models.reranker_model import RerankModel, prepare_model
from eti_rank.settings import ModelSettings
from eval import beir, live, record

ENGINES: dict[str, dict[str, Any]] = {
    "plain": {"plugin": False, "generation": True},
    "with_hooks": {"generation": True, "hooks": ["scheduling", "sampling", "attention"]},
}
BATCH, NEW_TOKENS, PAIRS, DOCUMENT_TOKENS = 8, 32, 24, 64


def loads(model: RerankModel, repetitions: int) -> dict[str, list[live.Load]]:
    """Loads on documents that never come twice; the first of each kind warms up."""
    collection = beir.collection("noveleval")
    texts = iter([document.full_text for document in collection.documents.values()])
    (query, *_) = collection.queries.values()

    def prompts(count: int) -> list[Prompt]:
        taken = [next(texts) for _ in range(count)]
        rendered = model.renderer.render(query, taken, max_document_tokens=DOCUMENT_TOKENS)
        return [prompt for prompt in rendered if isinstance(prompt, Prompt)]

    scoring, decoding = [], []
    for number in range(repetitions + 1):
        count = PAIRS if number else 2
        scoring.append(live.Load(tuple(scored(f"{number}-{n}", p) for n, p in enumerate(prompts(count)))))
        decoding.append(live.Load(tuple(continued(f"{number}-{n}", p) for n, p in enumerate(prompts(BATCH)))))
    return {"scoring": scoring, "decoding": decoding}


def scored(name: str, prompt: Prompt) -> ScoringStep:
    """The step that scores a pair by likelihood."""
    return ScoringStep(step_id=name, token_ids=prompt.token_ids, readout=Likelihood(prompt.likelihood_start))


def continued(name: str, prompt: Prompt) -> GenerationStep:
    """A greedy continuation of the first tokens of a document: mostly decoding."""
    return GenerationStep(
        step_id=name,
        token_ids=prompt.token_ids[:24],
        max_new_tokens=NEW_TOKENS,
        sampling=Sampling(temperature=0.0, ignore_eos=True),
    )


def answers(done: live.Done) -> list[Any]:
    """What must be equal."""
    return [result.token_ids if isinstance(result, Generated) else result.logprobs for result in done.results]


def largest_difference(one: live.Done, other: live.Done) -> float:
    """Of log-probabilities of the same steps."""
    pairs = zip(one.results, other.results, strict=True)
    return max(
        abs(a - b)
        for left, right in pairs
        if isinstance(left, Evidence) and isinstance(right, Evidence)
        for a, b in zip(left.logprobs, right.logprobs, strict=True)
    )


def ratios(rows: list[dict[str, live.Done]]) -> dict[str, Any]:
    """Speed with hooks over plain speed, load by load."""
    found = [row["plain"].makespan_s / row["with_hooks"].makespan_s for row in rows]
    quarters = statistics.quantiles(found, n=4)
    return {
        "ratio": statistics.median(found),
        "quartiles": [quarters[0], quarters[2]],
        "seconds": [{name: round(done.makespan_s, 4) for name, done in row.items()} for row in rows],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=12)
    given = parser.parse_args()
    model = prepare_model(ModelSettings())
    figures: dict[str, Any] = {}
    with live.engines(model.checkpoint, ENGINES, max_prompt_tokens=512) as asks:
        for kind, todo in loads(model, given.repetitions).items():
            rows = live.in_turn(asks, todo)[1:]
            equal = all(answers(row["plain"]) == answers(row["with_hooks"]) for row in rows)
            figures[kind] = {"equal": equal} | ratios(rows)
            if kind == "scoring":
                figures[kind]["max_abs_diff"] = max(
                    largest_difference(row["plain"], row["with_hooks"]) for row in rows
                )
            print(kind, {key: value for key, value in figures[kind].items() if key != "seconds"}, flush=True)
    record.write_section(
        "runtime", "overhead", figures, f"python -m eval.runtime_overhead --repetitions {given.repetitions}"
    )


if __name__ == "__main__":
    main()
