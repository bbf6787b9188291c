"""Pairs per second of the service with policy `full`, against bare SGLang and transformers.

    python -m eval.bench_full

Three sides take turns on the same prompts in one run, each in a process of its own and asleep while
another works: our service over HTTP, ``sglang.Engine`` without our plugin (all prompts in one call,
the same arguments), and transformers in left-padded batches of 8. Every repetition takes documents
that no side has seen. Two workloads: several queries over the same documents, where a prompt that
starts with the document repeats its prefix, and one query over distinct documents.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import httpx

from eti_rank.engine.sglang_local import arguments
from eti_rank.models.prompt import Prompt
from eti_rank.models.reranker_model import RerankModel, prepare_model
from eti_rank.settings import EngineSettings, ModelSettings
from eval import beir, record, served

BATCH = 8
SIDES = ("service", "bare_engine", "transformers")


@dataclass(frozen=True, slots=True)
class Work:
    """One repetition: every query against every document."""

    workload: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    """Query by query, in the order of the documents."""
    document_tokens: int

    @property
    def pairs(self) -> int:
        """Number of pairs scored."""
        return len(self.queries) * len(self.documents)


def works(model: RerankModel, repetitions: int, document_tokens: int) -> list[Work]:
    """All repetitions of both workloads, on documents that never come twice."""
    collection = beir.collection("noveleval")
    texts = iter([document.full_text for document in collection.documents.values()])
    queries = list(collection.queries.values())
    made = []
    for number in range(repetitions + 1):
        for workload, asked, documents in (("repeated", 3, 12), ("distinct", 1, 32)):
            chosen = tuple(queries[(number + offset) % len(queries)] for offset in range(asked))
            taken = tuple(next(texts) for _ in range(documents if number else 2))  # the first one warms up
            rendered = [
                prompt
                for query in chosen
                for prompt in model.renderer.render(query, taken, max_document_tokens=document_tokens)
            ]
            prompts = tuple(prompt for prompt in rendered if isinstance(prompt, Prompt))
            made.append(Work(workload, chosen, taken, prompts, document_tokens))
    return made


async def ask_service(url: str, work: Work) -> int:
    """All queries at once, as several clients would; uncached tokens by the service's own account."""
    async with httpx.AsyncClient(timeout=600) as client:
        bodies = [
            {"query": query, "documents": list(work.documents), "max_tokens_per_doc": work.document_tokens}
            for query in work.queries
        ]
        answers = await asyncio.gather(*(client.post(f"{url}/rerank", json=body) for body in bodies))
    for answer in answers:
        answer.raise_for_status()
    return sum(answer.json()["usage"]["uncached_tokens"] for answer in answers)


def bare_engine(channel: Connection, checkpoint: str, threads: int) -> None:
    """A process with ``sglang.Engine`` and nothing of ours in it."""
    import os

    os.environ |= arguments.CPU_ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)}
    from sglang.srt.entrypoints.engine import Engine

    settings = arguments.server_arguments(
        EngineSettings(), checkpoint=checkpoint, device="cpu", max_prompt_tokens=2048
    )
    engine = Engine(**settings)

    def run(work: Work) -> int:
        answers = engine.generate(
            input_ids=[list(prompt.token_ids) for prompt in work.prompts],
            sampling_params={"max_new_tokens": 0, "temperature": 0.0},
            return_logprob=True,
            logprob_start_len=[prompt.likelihood_start - 1 for prompt in work.prompts],
        )
        return sum(a["meta_info"]["prompt_tokens"] - a["meta_info"]["cached_tokens"] for a in answers)

    try:
        answer(channel, run)
    finally:
        engine.shutdown()


def transformers_batches(channel: Connection, checkpoint: str, threads: int) -> None:
    """A process with the plain forward pass; it computes the logits of the scored positions only."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    network = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)

    def run(work: Work) -> int:
        tokens = 0
        with torch.inference_mode():
            for start in range(0, len(work.prompts), BATCH):
                batch = work.prompts[start : start + BATCH]
                longest = max(len(prompt.token_ids) for prompt in batch)
                ids = torch.zeros(len(batch), longest, dtype=torch.long)
                mask = torch.zeros_like(ids)
                for row, prompt in enumerate(batch):
                    ids[row, -len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
                    mask[row, -len(prompt.token_ids) :] = 1
                scored = max(len(prompt.token_ids) - prompt.likelihood_start for prompt in batch)
                positions = (mask.cumsum(-1) - 1).clamp(min=0)
                logits = network(
                    ids,
                    attention_mask=mask,
                    position_ids=positions,
                    logits_to_keep=scored + 1,
                    use_cache=False,
                ).logits
                logprobs = logits[:, :-1].float().log_softmax(-1)  # [B, scored, V]
                logprobs.gather(-1, ids[:, -scored:, None])
                tokens += ids.numel()
        return tokens

    answer(channel, run)


def answer(channel: Connection, run: Callable[[Work], int]) -> None:
    """Serve the other end of the pipe until it sends None."""
    channel.send("ready")
    while (work := channel.recv()) is not None:
        started = time.perf_counter()
        tokens = run(work)
        channel.send((time.perf_counter() - started, tokens))


@contextmanager
def side(target: Callable[..., None], *given: Any) -> Iterator[Callable[[Work], tuple[float, int]]]:
    """A process that runs `target`; yields the function that has it do a piece of work."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *given))
    process.start()
    try:
        if not ours.poll(300):
            raise RuntimeError(f"{target.__name__} did not start")
        ours.recv()

        def ask(work: Work) -> tuple[float, int]:
            ours.send(work)
            return ours.recv()  # type: ignore[no-any-return]

        yield ask
        ours.send(None)
    finally:
        process.join(timeout=60)
        process.kill()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--document-tokens", type=int, default=64)
    given = parser.parse_args()
    model = prepare_model(ModelSettings())
    threads = arguments.threads_of(EngineSettings(), "cpu") or 1
    todo = works(model, given.repetitions, given.document_tokens)
    rows: list[dict[str, Any]] = []
    with (
        served.service() as service,
        side(bare_engine, model.checkpoint, threads) as bare,
        side(transformers_batches, model.checkpoint, threads) as plain,
    ):

        def through_service(work: Work) -> tuple[float, int]:
            started = time.perf_counter()
            tokens = asyncio.run(ask_service(service.url, work))
            return time.perf_counter() - started, tokens

        ways = dict(zip(SIDES, (through_service, bare, plain), strict=True))
        for number, work in enumerate(todo):
            turn = list(ways) if number % 2 else list(reversed(ways))
            taken = {name: ways[name](work) for name in turn}
            if number < 2:
                continue  # warm-up of each workload
            row: dict[str, Any] = {"workload": work.workload, "pairs": work.pairs}
            for name, (seconds, tokens) in taken.items():
                row[name] = {"seconds": round(seconds, 4), "tokens": tokens}
            rows.append(row)
            print(row, flush=True)
    record.write(
        "bench_full", summary(rows) | {"threads": threads, "repetitions": rows}, "python -m eval.bench_full"
    )
    print(summary(rows))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median ratios of pairs per second, ours over theirs, of paired repetitions."""

    def ratio(other: str, workload: str) -> dict[str, float]:
        ratios = [
            row[other]["seconds"] / row["service"]["seconds"] for row in rows if row["workload"] == workload
        ]
        return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}

    by_workload = {
        workload: {other: ratio(other, workload) for other in SIDES[1:]}
        for workload in ("repeated", "distinct")
    }
    return {
        "ratio_bare_engine": statistics.median(
            by_workload[workload]["bare_engine"]["median"] for workload in by_workload
        ),
        "ratio_transformers": by_workload["repeated"]["transformers"]["median"],
        "ratios": by_workload,
    }


if __name__ == "__main__":
    main()
