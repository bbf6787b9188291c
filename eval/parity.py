"""Our scores against a plain transformers forward pass of the same token ids, in float32.

    python -m eval.parity --pairs 50

Each pair is read out both ways (label: " yes" and " no" as the next token; likelihood: the query's
tokens), with the radix cache on and off, one step at a time and all at once.
"""

import argparse
import asyncio
import random
from itertools import product

from eti_rank.engine.protocol import Evidence, Labels, Likelihood, ScoringStep, score_all
from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.models.prompt import Prompt
from eti_rank.models.reranker_model import RerankModel, prepare_model
from eti_rank.settings import EngineSettings, ModelSettings
from eval import beir, record

SEED = 20261201
LABELS = (" yes", " no")
SCORERS = ("label", "likelihood")


def prompts_of(model: RerankModel, pairs: int, document_tokens: int) -> list[Prompt]:
    """Prompts of randomly drawn judged pairs; documents are cut, since only equality matters."""
    collection = beir.collection("noveleval")
    drawn = random.Random(SEED).sample(list(collection.qrels), pairs)
    prompts = []
    for qrel in drawn:
        document = collection.documents[qrel.doc_id].full_text
        (prompt,) = model.renderer.render(
            collection.queries[qrel.query_id], [document], max_document_tokens=document_tokens
        )
        assert isinstance(prompt, Prompt)
        prompts.append(prompt)
    return prompts


def reference(
    checkpoint: str, prompts: list[Prompt], labels: tuple[int, ...]
) -> dict[str, list[list[float]]]:
    """Log-probabilities by transformers, per scorer and pair."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    found: dict[str, list[list[float]]] = {scorer: [] for scorer in SCORERS}
    with torch.inference_mode():
        for prompt in prompts:
            logits = network(torch.tensor([prompt.token_ids])).logits[0].double()
            logprobs = logits.log_softmax(-1)  # [T, V]
            found["label"].append(logprobs[-1, list(labels)].tolist())
            scored = range(prompt.likelihood_start, len(prompt.token_ids))
            found["likelihood"].append([logprobs[n - 1, prompt.token_ids[n]].item() for n in scored])
    return found


def steps_of(prompts: list[Prompt], scorer: str, labels: tuple[int, ...]) -> list[ScoringStep]:
    """The same prompts as steps of one scorer."""
    return [
        ScoringStep(
            step_id=f"{scorer}:{number}",
            token_ids=prompt.token_ids,
            readout=Labels(labels) if scorer == "label" else Likelihood(prompt.likelihood_start),
        )
        for number, prompt in enumerate(prompts)
    ]


def raw_score(scorer: str, logprobs: list[float] | tuple[float, ...]) -> float:
    """Log-odds of the two labels, or the mean over the query's tokens."""
    return logprobs[0] - logprobs[1] if scorer == "label" else sum(logprobs) / len(logprobs)


async def measure(
    checkpoint: str, prompts: list[Prompt], labels: tuple[int, ...], want: dict[str, list[list[float]]]
) -> list[dict[str, object]]:
    """Largest differences per scorer, cache setting and way of asking."""
    rows: list[dict[str, object]] = []
    for radix in (True, False):
        # One thread: the figures are differences, and a busy machine stalls the barriers of several.
        engine = SglangLocal(EngineSettings(radix_cache=radix, threads=1), checkpoint, 2048)
        await engine.start()
        try:
            for scorer, way in product(SCORERS, ("alone", "batched")):
                steps = steps_of(prompts, scorer, labels)
                if radix:
                    await engine.flush_cache()
                if way == "batched":
                    got: list[Evidence] = await score_all(engine, steps)
                else:
                    got = [await engine.score(step) for step in steps]
                difference = max(
                    abs(raw_score(scorer, theirs) - raw_score(scorer, ours.logprobs))
                    for theirs, ours in zip(want[scorer], got, strict=True)
                )
                rows.append(
                    {
                        "scorer": scorer,
                        "radix_cache": radix,
                        "submitted": way,
                        "pairs": len(steps),
                        "cached_tokens": sum(evidence.cached_tokens for evidence in got),
                        "max_abs_diff": difference,
                    }
                )
                print(rows[-1], flush=True)
        finally:
            await engine.close()
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--document-tokens", type=int, default=64)
    given = parser.parse_args()
    model = prepare_model(ModelSettings())
    prompts = prompts_of(model, given.pairs, given.document_tokens)
    labels = tuple(model.renderer.label_token(label) for label in LABELS)
    want = reference(model.checkpoint, prompts, labels)
    rows = asyncio.run(measure(model.checkpoint, prompts, labels, want))
    figures = {"rows": rows, "tolerance": 1e-3, "dtype": "float32", "document_tokens": given.document_tokens}
    record.write("parity", figures, f"python -m eval.parity --pairs {given.pairs}")


if __name__ == "__main__":
    main()
