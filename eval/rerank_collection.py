"""Reranks the first documents of a collection's run through the product path, and measures it.

python -m eval.rerank_collection noveleval --depth 20
"""

import argparse
import asyncio
import time
from typing import Any

from ir_measures import ScoredDoc

from eti_rank.service.backend import build_backend
from eti_rank.settings import load_settings
from eti_rank.types import RerankRequest
from eval import beir, measures, record


async def rerank(
    collection: beir.Collection, depth: int, queries: list[str]
) -> tuple[list[ScoredDoc], dict[str, Any]]:
    """Ranked rows of all queries, and what it took."""
    backend = build_backend(load_settings())
    await backend.engine.start()
    rows: list[ScoredDoc] = []
    prompt_tokens = cached_tokens = 0
    started = time.perf_counter()
    try:
        for number, query_id in enumerate(queries, 1):
            request = RerankRequest(
                request_id=query_id,
                query=collection.queries[query_id],
                documents=collection.candidates(query_id, depth),
            )
            ranking = await backend.reranker.rerank(request)
            prompt_tokens += ranking.prompt_tokens
            cached_tokens += ranking.cached_tokens
            # Ranks as scores: documents that could not be scored keep their place, and ties theirs.
            rows += [
                ScoredDoc(query_id, str(result.document.id), float(-rank))
                for rank, result in enumerate(ranking.results)
            ]
            print(f"{number}/{len(queries)} queries, {time.perf_counter() - started:.0f} s", flush=True)
        wall_s = time.perf_counter() - started
    finally:
        await backend.engine.close()
    spent = {
        "profile": backend.model.profile.name,
        "template": backend.model.template_id,
        "pairs": len(rows),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "wall_s": round(wall_s, 1),
    }
    return rows, spent


def figures(collection: beir.Collection, rows: list[ScoredDoc], depth: int) -> dict[str, Any]:
    """Both nDCG@10 of the reranked run, against the first stage on the same candidates."""
    asked = {row.query_id for row in rows}
    first = [row for query in asked for row in collection.run[query][:depth]]
    found: dict[str, Any] = {}
    gains = (("ndcg10", measures.NDCG), ("ndcg10_exponential", measures.NDCG_EXPONENTIAL))
    for name, measure in gains:
        ours = measures.per_query(measure, collection.qrels, rows)
        theirs = measures.per_query(measure, collection.qrels, first)
        difference = measures.compare(ours, theirs)
        found[name] = measures.mean(ours)
        found[f"first_stage_{name}"] = measures.mean(theirs)
        found[f"{name}_p_against_first_stage"] = difference.p_value
        found[f"{name}_per_query"] = ours
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection")
    parser.add_argument("--depth", type=int, default=20, help="documents per query")
    parser.add_argument("--queries", type=int, help="only the first so many")
    given = parser.parse_args()
    collection = beir.collection(given.collection)
    queries = [query for query in collection.queries if query in collection.run][: given.queries]
    rows, spent = asyncio.run(rerank(collection, given.depth, queries))
    found = figures(collection, rows, given.depth)
    name = f"rerank_{collection.name}"
    beir.write_run(record.RESULTS / f"{name}.run", rows, "eti-rank")
    command = f"python -m eval.rerank_collection {collection.name} --depth {given.depth}"
    record.write(name, {"collection": collection.name, "depth": given.depth, **spent, **found}, command)
    for key in ("ndcg10", "first_stage_ndcg10", "ndcg10_exponential", "first_stage_ndcg10_exponential"):
        print(f"{key:32} {found[key]:.4f}")


if __name__ == "__main__":
    main()
