"""POST /rerank: answers to good requests."""

import json
import math

import pytest

from eti_rank.service.schemas import RerankOut
from eti_rank.settings import LimitSettings
from tests.rerank_double import UNREADABLE


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_the_whole_answer(serve, path: str) -> None:
    served = await serve()
    body = {
        "query": "q",
        "documents": ["a score=-1", {"text": "b score=2", "id": "B", "title": "T", "first_stage_score": 3}],
        "request_id": "my-1",
        "return_documents": True,
    }
    answer = await served.client.post(path, json=body)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "my-1"
    p = 1 / (1 + math.exp(-2))
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    found = answer.json()
    assert found["results"][0] == {
        "index": 1,
        "id": "B",
        "relevance_score": pytest.approx(p),
        "document": {"text": "b score=2", "title": "T"},
        "uncertainty": {"entropy_nats": pytest.approx(entropy), "top_n_probability": 1.0, "tied_with": []},
        "compute": {
            "level": "full",
            "prompt_tokens": 8,
            "cached_tokens": 0,
            "entropic_time_nats": pytest.approx(math.log(2) - entropy),
        },
        "status": "ok",
        "truncated_tokens": 0,
        "failure": None,
    }
    assert found["results"][1]["index"] == 0
    assert found["results"][1]["document"] == {"text": "a score=-1", "title": None}
    assert (found["id"], found["model"]) == ("my-1", "double")
    assert found["usage"] == {
        "prompt_tokens": 15,
        "cached_tokens": 0,
        "uncached_tokens": 15,
        "full_tokens": 15,
        "total_tokens": 15,
    }
    assert found["meta"] == {
        "stopped_by": "complete",
        "policy": "full",
        "utility": "ndcg",
        "entropic_time_nats": pytest.approx(found["meta"]["entropic_time_nats"]),
        "efficiency": pytest.approx(1000 * found["meta"]["entropic_time_nats"] / 15),
        "score_type": "label",
        "calibrated": False,
        "noise_floor": 1e-6,
        "template": "double@1",
        "failed": 0,
        "billed_units": {"search_units": 1},
    }
    assert set(found) == set(RerankOut.model_fields)


async def test_documents_are_returned_only_on_request(serve) -> None:
    served = await serve()
    assert (await served.rerank(["a"])).json()["results"][0]["document"] is None


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (2, 2), (3, 3), (100, 3), (None, 3)])
async def test_top_n_cuts_the_results_but_not_the_usage(serve, top_n, count) -> None:
    served = await serve()
    found = (await served.rerank(["a score=1", "b score=2", "c score=3"], top_n=top_n)).json()
    assert [row["index"] for row in found["results"]] == [2, 1, 0][:count]
    assert found["usage"]["full_tokens"] == 3 * 7


async def test_good_documents_beside_bad_ones_are_ranked(serve) -> None:
    served = await serve(limits=LimitSettings(max_document_bytes=1000))
    documents = [
        "score=1",
        "",
        {"text": "bad \ud800 text", "id": "s"},
        "x" * 1001,
        f"{UNREADABLE} a",
        "nul \0",
    ]
    body = json.dumps({"query": "q", "documents": [*documents, "score=9"], "return_documents": True})
    answer = await served.client.post("/rerank", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["meta"]["failed"] == 3
    rows = {row["index"]: row for row in answer.json()["results"]}
    assert [rows[i]["status"] for i in range(7)] == ["ok", "empty", "failed", "failed", "failed", "ok", "ok"]
    order = [row["index"] for row in answer.json()["results"]]
    assert order[0] == 6 and order[3:] == [1, 2, 3, 4]
    assert rows[2]["document"]["text"] == "bad \ufffd text"
    assert "U+FFFD" in rows[2]["failure"] and "position 4" in rows[2]["failure"]
    assert "1001 bytes" in rows[3]["failure"]
    assert rows[5]["document"]["text"] == "nul \0"


async def test_surrogates_in_ids_are_replaced_too(serve) -> None:
    served = await serve()
    body = json.dumps({"query": "q", "documents": [{"text": "a", "id": "\udc00"}], "return_documents": True})
    answer = await served.client.post("/rerank", content=body, headers={"content-type": "application/json"})
    assert answer.json()["results"][0]["id"] == "\ufffd"
    assert answer.json()["results"][0]["status"] == "failed"


async def test_paired_surrogates_are_one_character(serve) -> None:
    served = await serve()
    body = b'{"query": "q", "documents": ["\\ud83d\\ude00"], "return_documents": true}'
    answer = await served.client.post("/rerank", content=body, headers={"content-type": "application/json"})
    assert answer.json()["results"][0]["document"]["text"] == "\U0001f600"
    assert answer.json()["results"][0]["status"] == "ok"


async def test_duplicates_share_their_result_and_tie_by_index(serve) -> None:
    served = await serve()
    rows = (await served.rerank(["a score=1", "b score=1", "a score=1"])).json()["results"]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert [row["compute"]["prompt_tokens"] for row in rows] == [7, 7, 0]
    assert rows[0]["uncertainty"]["tied_with"] == [1, 2]


async def test_as_many_documents_as_the_limit(serve) -> None:
    served = await serve()
    rows = (await served.rerank([f"document {n}" for n in range(2000)])).json()["results"]
    assert sorted(row["index"] for row in rows) == list(range(2000))


async def test_a_budget_in_milliseconds_and_in_tokens(serve) -> None:
    served = await serve()
    for budget, stopped_by in (
        ({"max_ms": 60_000}, "complete"),
        ({"max_tokens": 10}, "budget"),
        ({"fraction": 0.4}, "budget"),
    ):
        found = (await served.rerank([f"{budget} {n}" for n in range(3)], budget=budget)).json()
        assert found["meta"]["stopped_by"] == stopped_by
        assert len(found["results"]) == 3


async def test_absent_content_type_is_taken_as_json(serve) -> None:
    served = await serve()
    answer = await served.client.post("/rerank", content=b'{"query": "q", "documents": ["a"]}')
    assert answer.status_code == 200
