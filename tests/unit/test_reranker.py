"""The main path, on the scripted engine."""

import asyncio
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eti_rank.engine.protocol import Engine, EngineState, Evidence, ScoringStep
from eti_rank.engine.scripted import Scripted
from eti_rank.errors import EngineUnavailable, InvalidField
from eti_rank.ranking.reranker import Reranker
from eti_rank.ranking.steps import WARM_PREFIX_TOKENS
from eti_rank.settings import EngineSettings
from eti_rank.types import Budget, Document, Ranking, RerankRequest, ScoreType, Status, StoppedBy, Truncation
from tests.rerank_double import UNREADABLE, DoubleModel, scripted_engine, scripted_logprobs


class Observed(Scripted):
    """Counts what is open, remembers the steps, and can stop answering after some of them."""

    def __init__(self, token_s: float = 0.0, stall_after: int | None = None) -> None:
        super().__init__(
            EngineSettings(max_running_requests=64),
            "m",
            4096,
            logprobs=scripted_logprobs,
            token_s=token_s,
        )
        self.stall_after = stall_after
        self.steps: list[ScoringStep] = []
        self.open_when_submitted: list[int] = []
        self.open = 0

    async def score(self, step: ScoringStep) -> Evidence:
        self.steps.append(step)
        self.open_when_submitted.append(self.open)
        self.open += 1
        try:
            if self.stall_after is not None and len(self.steps) > self.stall_after:
                await asyncio.Event().wait()
            return await super().score(step)
        finally:
            self.open -= 1


async def started(engine: Engine) -> Engine:
    await engine.start()
    return engine


def reranker(engine: Engine, model: DoubleModel | None = None, **options: object) -> Reranker:
    defaults = {"max_in_flight": 8, "max_document_bytes": 1000}
    return Reranker(engine, model or DoubleModel(), **(defaults | options))


def request(
    *texts: str, query: str = "what is it", first: list[float] | None = None, **fields
) -> RerankRequest:
    documents = tuple(
        Document(index=i, text=text, first_stage_score=first[i] if first else None)
        for i, text in enumerate(texts)
    )
    return RerankRequest(request_id="r", query=query, documents=documents, **fields)


def order(ranking: Ranking) -> list[int]:
    return [row.document.index for row in ranking.results]


def by_index(ranking: Ranking) -> dict:
    return {row.document.index: row for row in ranking.results}


async def test_documents_are_ranked_by_score() -> None:
    engine = await started(scripted_engine())
    ranking = await reranker(engine).rerank(request("a score=-1", "b score=2", "c score=0.5"))
    assert order(ranking) == [1, 2, 0]
    assert [row.raw_score for row in ranking.results] == pytest.approx([2.0, 0.5, -1.0])
    assert ranking.results[0].relevance_score == pytest.approx(1 / (1 + math.exp(-2)))
    assert ranking.stopped_by is StoppedBy.COMPLETE
    assert (ranking.model, ranking.template, ranking.score_type) == ("double", "double@1", ScoreType.LABEL)


async def test_a_bad_document_leaves_the_others_alone() -> None:
    engine = await started(scripted_engine())
    texts = ["score=1", "", f"{UNREADABLE} a", "\ud800", "score=2", "unsupported", "score=nan", "x" * 2000]
    ranking = await reranker(engine).rerank(request(*texts))
    assert order(ranking) == [4, 0, 1, 2, 3, 5, 6, 7]
    rows = by_index(ranking)
    assert [rows[i].status for i in range(8)] == [
        Status.OK,
        Status.EMPTY,
        Status.FAILED,
        Status.FAILED,
        Status.OK,
        Status.FAILED,
        Status.FAILED,
        Status.FAILED,
    ]
    assert all((rows[i].failure is None) == (i in {0, 1, 4}) for i in range(8))
    assert rows[6].compute.prompt_tokens > 0, "the score was not a number, but it was paid for"
    assert all(0.0 <= row.relevance_score <= 1.0 for row in ranking.results)


async def test_empty_documents_never_reach_the_engine() -> None:
    engine = await started(Observed())
    ranking = await reranker(engine).rerank(request("", "  "))
    assert engine.steps == []
    assert order(ranking) == [0, 1]
    assert ranking.efficiency == 0.0


async def test_a_bad_query_is_refused_even_when_all_documents_are_empty() -> None:
    engine = await started(scripted_engine())
    with pytest.raises(InvalidField) as refused:
        await reranker(engine).rerank(request("", query="word " * 101))
    assert refused.value.param == "query"


async def test_a_duplicate_is_scored_once_and_ties_by_index() -> None:
    engine = await started(Observed())
    ranking = await reranker(engine).rerank(request("b score=1", "a score=3", "b score=1", "a score=3"))
    assert len(engine.steps) == 2
    assert order(ranking) == [1, 3, 0, 2]
    original, copy = ranking.results[0], ranking.results[1]
    assert original.raw_score == copy.raw_score
    assert original.compute.prompt_tokens > 0
    assert (copy.compute.level, copy.compute.prompt_tokens, copy.compute.entropic_time_nats) == ("full", 0, 0)
    assert copy.uncertainty.tied_with == (1,)
    assert ranking.full_tokens == 2 * ranking.prompt_tokens


async def test_truncation_is_reported() -> None:
    engine = await started(scripted_engine())
    texts = ("score=1 two three", "score=5")
    for truncation, status in ((Truncation.RIGHT, Status.TRUNCATED), (Truncation.NONE, Status.FAILED)):
        ranking = await reranker(engine).rerank(request(*texts, max_tokens_per_doc=2, truncation=truncation))
        row = by_index(ranking)[0]
        assert row.status is status
        assert row.truncated_tokens == (1 if status is Status.TRUNCATED else 0)


async def test_likelihood_models_read_the_query() -> None:
    engine = await started(Observed())
    model = DoubleModel(score_type=ScoreType.LIKELIHOOD)
    ranking = await reranker(engine, model).rerank(request("alpha", "beta gamma", query="two words"))
    assert [step.readout.start for step in engine.steps] == [5, 6]
    assert ranking.score_type is ScoreType.LIKELIHOOD
    assert all(row.raw_score < 0 for row in ranking.results)


async def test_entropic_time_is_the_entropy_resolved() -> None:
    engine = await started(scripted_engine())
    ranking = await reranker(engine).rerank(request("a score=0", "b score=20"))
    rows = by_index(ranking)
    assert rows[0].compute.entropic_time_nats == 0.0
    assert rows[1].compute.entropic_time_nats == pytest.approx(math.log(2), abs=1e-6)
    uncached = ranking.prompt_tokens - ranking.cached_tokens
    assert ranking.efficiency == pytest.approx(1000 * ranking.entropic_time_nats / uncached)


@pytest.mark.parametrize(
    ("query_words", "prefix_cache", "alone"),
    [(WARM_PREFIX_TOKENS, True, True), (2, True, False), (WARM_PREFIX_TOKENS, False, False)],
    ids=["long-prefix", "short-prefix", "no-cache"],
)
async def test_the_first_step_goes_alone_when_it_pays(query_words, prefix_cache, alone) -> None:
    engine = await started(Observed(token_s=0.0001))
    ranker = reranker(engine, prefix_cache=prefix_cache)
    query = " ".join(f"w{n}" for n in range(query_words))
    ranking = await ranker.rerank(request("alpha", "beta", "gamma", query=query))
    assert engine.open_when_submitted == ([0, 0, 1] if alone else [0, 1, 2])
    cached = [by_index(ranking)[i].compute.cached_tokens for i in range(3)]
    assert cached == ([0, query_words + 3, query_words + 3] if alone else [0, 0, 0])


async def test_the_window_bounds_open_steps_over_all_requests() -> None:
    engine = await started(Observed(token_s=0.0001))
    ranker = reranker(engine, max_in_flight=5)
    requests = [request(*(f"d{r}-{n}" for n in range(20))) for r in range(3)]
    await asyncio.gather(*map(ranker.rerank, requests))
    assert max(engine.open_when_submitted) == 4
    assert len(engine.steps) == 60
    assert len({step.step_id for step in engine.steps}) == 60


async def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    engine = await started(Observed(token_s=0.0001))
    ranker = reranker(engine, max_in_flight=2)
    large = asyncio.create_task(ranker.rerank(request(*(f"large{n}" for n in range(200)))))
    await asyncio.sleep(0.01)
    await ranker.rerank(request("small1", "small2", "small3"))
    assert not large.done()
    assert len(engine.steps) < 100
    await large


async def test_results_are_the_same_alone_and_under_load() -> None:
    texts = [f"document {n} " + "x " * (n % 7) for n in range(30)]

    def summary(ranking: Ranking) -> list:
        return [(r.document.index, r.raw_score, r.status, r.uncertainty) for r in ranking.results]

    alone = summary(await reranker(await started(Observed())).rerank(request(*texts)))
    ranker = reranker(await started(Observed(token_s=0.00001)), max_in_flight=3)
    others = [request(*reversed(texts), query=f"other {n}") for n in range(4)]
    loaded = await asyncio.gather(ranker.rerank(request(*texts)), *map(ranker.rerank, others))
    assert summary(loaded[0]) == alone


async def test_a_deadline_answers_with_what_is_known() -> None:
    engine = await started(Observed(stall_after=4))
    texts = [f"score={n}" for n in range(10)]
    first = [float(n % 5) for n in range(10)]
    ranking = await reranker(engine, max_in_flight=1).rerank(
        request(*texts, first=first, budget=Budget(max_s=0.2))
    )
    assert ranking.stopped_by is StoppedBy.DEADLINE
    assert order(ranking) == [9, 8, 4, 3, 2, 7, 1, 6, 0, 5]
    read, unread = ranking.results[:4], ranking.results[4:]
    assert {row.compute.level for row in read} == {"full"}
    assert {row.compute.level for row in unread} == {"none"}
    assert all(row.raw_score is None and row.status is Status.OK for row in unread)
    assert 0 < read[-1].uncertainty.top_n_probability <= 1
    assert engine.open == 0, "the open step was cancelled"


async def test_a_deadline_before_anything_was_read_keeps_the_first_stage_order() -> None:
    engine = await started(Observed())
    ranking = await reranker(engine).rerank(
        request("a", "b", "c", first=[0.1, 0.3, 0.2], budget=Budget(max_s=0.0))
    )
    assert order(ranking) == [1, 2, 0]
    assert engine.steps == []
    assert ranking.stopped_by is StoppedBy.DEADLINE


async def test_a_deadline_that_does_not_strike_changes_nothing() -> None:
    engine = await started(Observed())
    ranking = await reranker(engine).rerank(request("a", budget=Budget(max_s=60.0)))
    assert ranking.stopped_by is StoppedBy.COMPLETE


@pytest.mark.parametrize("max_tokens", [1, 20, 50, 90, 10_000])
async def test_a_budget_of_tokens_is_never_exceeded(max_tokens: int) -> None:
    engine = await started(Observed(token_s=0.00001))
    texts = [f"document number {n}" for n in range(12)]
    ranking = await reranker(engine).rerank(request(*texts, budget=Budget(max_tokens=max_tokens)))
    spent = ranking.prompt_tokens - ranking.cached_tokens
    assert spent <= max_tokens
    complete = all(row.compute.level == "full" for row in ranking.results)
    assert (ranking.stopped_by is StoppedBy.COMPLETE) == complete
    assert complete == (max_tokens == 10_000)


async def test_a_budget_is_spent_on_the_best_of_the_first_stage() -> None:
    engine = await started(Observed())
    ranking = await reranker(engine).rerank(
        request("a score=-9", "b score=-9", "c score=-9", first=[1.0, 3.0, 2.0], budget=Budget(max_tokens=20))
    )
    assert ranking.stopped_by is StoppedBy.BUDGET
    assert [row.document.index for row in ranking.results if row.compute.level == "full"] == [1, 2]


async def test_the_whole_fraction_is_complete_and_half_is_not() -> None:
    texts = [f"document number {n}" for n in range(10)]
    for fraction, stopped_by in ((1.0, StoppedBy.COMPLETE), (0.5, StoppedBy.BUDGET)):
        engine = await started(Observed())
        ranking = await reranker(engine).rerank(request(*texts, budget=Budget(fraction=fraction)))
        assert ranking.stopped_by is stopped_by
        assert ranking.full_tokens == sum(3 + 3 + 3 + 1 for _ in texts)


async def test_an_engine_that_dies_fails_the_request_and_frees_the_window() -> None:
    engine = await started(Observed(token_s=0.01))
    ranker = reranker(engine, max_in_flight=2)
    running = asyncio.create_task(ranker.rerank(request(*(f"d{n}" for n in range(10)))))
    await asyncio.sleep(0.02)
    engine.kill()
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(running, 1.0)
    assert engine.open == 0
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(ranker.rerank(request("a", "b")), 1.0)


async def test_cancelling_a_request_frees_the_window() -> None:
    engine = await started(Observed(token_s=0.01))
    ranker = reranker(engine, max_in_flight=2)
    running = asyncio.create_task(ranker.rerank(request(*(f"d{n}" for n in range(10)))))
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.open == 0
    assert engine.state is EngineState.READY
    await asyncio.wait_for(ranker.rerank(request("a", "b", "c")), 1.0)


async def test_rendering_goes_in_chunks_that_a_deadline_can_part() -> None:
    engine = await started(Observed())
    model = DoubleModel()
    ranker = reranker(engine, model, max_document_bytes=1 << 20)
    texts = [f"{n} " + "y" * (1 << 17) for n in range(6)]
    await ranker.rerank(request(*texts))
    assert model.renderer.calls == [2, 2, 2]


BAD: dict[str, Callable[[int], str]] = {
    "good": lambda n: f"good {n}",
    "same": lambda n: "the same text",
    "empty": lambda n: " " * n,
    "unrenderable": lambda n: f"{UNREADABLE} {n}",
    "unsupported": lambda n: f"unsupported {n}",
    "surrogate": lambda n: f"{n} \udc00",
    "large": lambda n: "z" * 1001,
    "nan": lambda n: f"score=nan {n}",
    "nul": lambda n: "\0" * (n + 1),
}


@given(
    kinds=st.lists(st.sampled_from(sorted(BAD)), min_size=1, max_size=25),
    top_n=st.one_of(st.none(), st.integers(1, 30)),
    max_tokens=st.one_of(st.none(), st.integers(1, 200)),
    score_type=st.sampled_from(ScoreType),
)
@settings(max_examples=60, deadline=None)
def test_any_mixture_gives_one_result_per_document(kinds, top_n, max_tokens, score_type) -> None:
    async def rank() -> Ranking:
        ranker = reranker(await started(scripted_engine()), DoubleModel(score_type=score_type))
        texts = [BAD[kind](n) for n, kind in enumerate(kinds)]
        return await ranker.rerank(request(*texts, top_n=top_n, budget=Budget(max_tokens=max_tokens)))

    ranking = asyncio.run(rank())
    assert sorted(order(ranking)) == list(range(len(kinds)))
    for row in ranking.results:
        kind = kinds[row.document.index]
        assert row.document.text == BAD[kind](row.document.index)
        if kind in {"empty", "surrogate", "large", "unrenderable"}:
            assert row.status is (Status.EMPTY if kind == "empty" else Status.FAILED)
        assert (row.failure is not None) == (row.status is Status.FAILED)
    places = min(top_n or len(kinds), len(kinds))
    assert sum(r.uncertainty.top_n_probability for r in ranking.results) == pytest.approx(places)
    raws = [r.raw_score for r in ranking.results if r.raw_score is not None]
    assert raws == sorted(raws, reverse=True)
