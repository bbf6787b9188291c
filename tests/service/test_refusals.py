"""What is refused, with which status, naming which field; one shape for all of it."""

import json
import logging

import httpx
import pytest

from eti_rank.engine.protocol import Evidence, ScoringStep
from eti_rank.engine.scripted import Scripted
from eti_rank.errors import EtiRankError, Overloaded, UnsupportedRequest
from eti_rank.service.problems import PROBLEMS, answer, problem_for
from eti_rank.settings import EngineSettings, LimitSettings

JSON = {"content-type": "application/json"}
GOOD = {"query": "q", "documents": ["a"]}


def check_shape(response: httpx.Response) -> dict:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"type", "message", "param", "request_id"}
    assert body["error"]["message"]
    assert body["error"]["request_id"] == response.headers["x-request-id"]
    return body["error"]


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"documents": []}, "documents", "at least 1"),
        ({"documents": "a"}, "documents", "list"),
        ({"documents": None}, "documents", "list"),
        ({"documents": ["a", 3]}, "documents.1", "a string, or an object"),
        ({"documents": ["a", ["b"]]}, "documents.1", "a string, or an object"),
        ({"documents": ["a", None]}, "documents.1", "a string, or an object"),
        ({"documents": ["a", {}]}, "documents.1.text", "required"),
        ({"documents": [{"text": 3}]}, "documents.0.text", "string"),
        ({"documents": [{"text": "a", "txt": "b"}]}, "documents.0.txt", "unknown field"),
        ({"documents": [{"text": "a", "first_stage_score": "1"}]}, "documents.0.first_stage_score", "number"),
        (
            {"documents": [{"text": "a", "first_stage_score": True}]},
            "documents.0.first_stage_score",
            "number",
        ),
        ({"documents": [{"text": "a", "id": 7}]}, "documents.0.id", "string"),
        ({"query": 3}, "query", "string"),
        ({"query": ""}, "query", "empty"),
        ({"query": " \n"}, "query", "empty"),
        ({"query": "a\ud800"}, "query", "surrogate at position 1"),
        ({"query": "w " * 101}, "query", "100 tokens"),
        ({"instruction": "\udfff"}, "instruction", "surrogate"),
        ({"top_n": 0}, "top_n", "greater than or equal to 1"),
        ({"top_n": -3}, "top_n", "greater than or equal to 1"),
        ({"top_n": "3"}, "top_n", "integer"),
        ({"top_n": True}, "top_n", "integer"),
        ({"top_n": 1.0}, "top_n", "integer"),
        ({"return_documents": 1}, "return_documents", "boolean"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc", "greater"),
        ({"truncation": "middle"}, "truncation", "'right', 'left' or 'none'"),
        ({"policy": "adaptive"}, "policy", "'full'"),
        ({"utility": "speed"}, "utility", "'ndcg', 'top_k' or 'entropy'"),
        ({"budget": {"max_tokens": 0}}, "budget.max_tokens", "greater"),
        ({"budget": {"max_ms": 0}}, "budget.max_ms", "greater"),
        ({"budget": {"fraction": 1.5}}, "budget.fraction", "less than or equal to 1"),
        ({"budget": {"tokens": 5}}, "budget.tokens", "unknown field"),
        ({"budget": 5}, "budget", "object"),
        ({"stream": True}, "stream", "not available in this version"),
        ({"explain": 3}, "explain", "not available in this version"),
        ({"explain": True}, "explain", "not available in this version"),
        ({"request_id": "a\nb"}, "request_id", "pattern"),
        ({"request_id": "a\n"}, "request_id", "pattern"),
        ({"request_id": ""}, "request_id", "pattern"),
        ({"model": "x"}, "model", "unknown field"),
        ({"Ünbekannt": 1}, "Ünbekannt", "unknown field"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
async def test_a_wrong_field_is_named(serve, change: dict, param: str, says: str) -> None:
    served = await serve()
    response = await served.client.post("/rerank", content=json.dumps(GOOD | change), headers=JSON)
    assert response.status_code == 422
    error = check_shape(response)
    assert error["type"] == "invalid_field"
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("field", ["query", "documents"])
async def test_a_missing_field_is_named(serve, field: str) -> None:
    served = await serve()
    response = await served.client.post("/rerank", json={k: v for k, v in GOOD.items() if k != field})
    assert response.status_code == 422
    assert check_shape(response)["param"] == field


async def test_several_faults_are_counted(serve) -> None:
    served = await serve()
    response = await served.client.post("/rerank", json={"query": 3, "documents": [1, 2]})
    error = check_shape(response)
    assert error["param"] == "query"
    assert "(and 2 more faults)" in error["message"]


async def test_what_is_switched_off_may_be_said(serve) -> None:
    served = await serve()
    assert (await served.rerank(["a"], stream=False, explain=0)).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="cut-off"),
        pytest.param(b'{"query": NaN}', id="nan"),
        pytest.param(b'{"query": -Infinity}', id="infinity"),
        pytest.param(b"\xff\xfe\xfd", id="not-utf-8"),
        pytest.param(b"[" * 100_000, id="too-deep"),
        pytest.param(b'{"top_n": ' + b"9" * 5000 + b"}", id="huge-integer"),
    ],
)
async def test_what_is_not_json_is_malformed(serve, body: bytes) -> None:
    served = await serve()
    response = await served.client.post("/rerank", content=body, headers=JSON)
    assert response.status_code == 400
    assert check_shape(response)["type"] == "malformed_request"


@pytest.mark.parametrize("body", [b"[]", b"3", b'"a"', b"null"])
async def test_json_that_is_no_object_is_a_wrong_field(serve, body: bytes) -> None:
    served = await serve()
    response = await served.client.post("/rerank", content=body, headers=JSON)
    assert response.status_code == 422
    assert check_shape(response)["message"] == "must be an object"


async def test_a_number_beyond_floats_is_refused(serve) -> None:
    served = await serve()
    body = b'{"query": "q", "documents": [{"text": "a", "first_stage_score": 1e999}]}'
    response = await served.client.post("/rerank", content=body, headers=JSON)
    assert response.status_code == 422
    assert check_shape(response)["param"] == "documents.0.first_stage_score"


async def test_too_many_documents(serve) -> None:
    served = await serve()
    response = await served.rerank(["a"] * 2001)
    assert response.status_code == 413
    error = check_shape(response)
    assert error["param"] == "documents"
    assert "2001 documents; the limit is 2000" in error["message"]


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_a_body_above_the_limit_is_not_read_on(serve, declared: bool) -> None:
    served = await serve(limits=LimitSettings(max_body_bytes=1000))
    taken = 0

    async def chunks():
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield b" " * 100

    headers = JSON | ({"content-length": "10000"} if declared else {})
    response = await served.client.post("/rerank", content=chunks(), headers=headers)
    assert response.status_code == 413
    assert "1000 bytes" in check_shape(response)["message"]
    assert taken <= 12


async def test_a_body_at_the_limit_is_taken(serve) -> None:
    body = json.dumps(GOOD).encode()
    served = await serve(limits=LimitSettings(max_body_bytes=len(body)))
    assert (await served.client.post("/rerank", content=body, headers=JSON)).status_code == 200
    assert (await served.client.post("/rerank", content=body + b" ", headers=JSON)).status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/rerank/", 404, "not_found"),
        ("GET", "/rerank", 405, "method_not_allowed"),
        ("PUT", "/v1/rerank", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
    ],
)
async def test_unknown_paths_and_methods(serve, method, path, status, kind) -> None:
    served = await serve()
    response = await served.client.request(method, path)
    assert response.status_code == status
    assert check_shape(response)["type"] == kind
    assert ("allow" in response.headers) == (status == 405)


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_another_media_type(serve, media_type: str) -> None:
    served = await serve()
    response = await served.client.post("/rerank", content=b"{}", headers={"content-type": media_type})
    assert response.status_code == 415
    error = check_shape(response)
    assert error["type"] == "unsupported_media_type"
    assert "application/json" in error["message"]


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
async def test_media_types_that_are_json(serve, media_type: str) -> None:
    served = await serve()
    body = json.dumps(GOOD)
    response = await served.client.post("/rerank", content=body, headers={"content-type": media_type})
    assert response.status_code == 200


class Broken(Scripted):
    """Has a fault that nobody foresaw."""

    async def score(self, step: ScoringStep) -> Evidence:
        raise RuntimeError("internal detail at /srv/secret")


async def test_an_unforeseen_error_says_nothing_and_is_logged_under_its_id(serve, caplog) -> None:
    served = await serve(make=lambda: Broken(EngineSettings(), "m", 100))
    with caplog.at_level(logging.INFO, logger="eti_rank"):
        response = await served.rerank(["my private text"], request_id="broken-1")
    assert response.status_code == 500
    error = check_shape(response)
    assert error["type"] == "internal_error"
    assert error["request_id"] == "broken-1"
    assert "internal detail" not in response.text and "RuntimeError" not in response.text
    assert "internal detail" in caplog.text
    assert "broken-1" in caplog.text
    assert "private" not in caplog.text


class Refusing(Scripted):
    """Refuses everything."""

    async def score(self, step: ScoringStep) -> Evidence:
        raise UnsupportedRequest("this engine cannot do it")


async def test_a_step_that_the_engine_cannot_do_fails_its_document(serve) -> None:
    served = await serve(make=lambda: Refusing(EngineSettings(), "m", 100))
    response = await served.rerank(["a"])
    assert response.status_code == 200
    assert response.json()["results"][0]["failure"] == "this engine cannot do it"


def all_classes(root: type) -> set[type]:
    return {root}.union(*(all_classes(child) for child in root.__subclasses__()))


def test_the_table_covers_the_whole_tree() -> None:
    ours = {kind for kind in all_classes(EtiRankError) if kind.__module__ == "eti_rank.errors"}
    assert set(PROBLEMS) == ours


def test_an_error_below_the_tree_is_answered_as_its_ancestor() -> None:
    class Special(Overloaded):
        pass

    assert problem_for(Special("full", retry_after_s=1)) is PROBLEMS[Overloaded]


def test_bad_input_is_never_a_5xx_and_5xx_of_our_own_faults_say_nothing() -> None:
    from eti_rank import errors

    for kind, problem in PROBLEMS.items():
        if issubclass(kind, errors.InvalidInput | errors.UnsupportedRequest):
            assert 400 <= problem.status < 500
        assert problem.shown or problem.status == 500


def test_overloaded_says_when_to_retry() -> None:
    response = answer(Overloaded("the queue is full", retry_after_s=0.2), "r")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"


async def test_a_field_name_with_a_surrogate_can_be_answered(serve) -> None:
    served = await serve()
    body = json.dumps(GOOD | {"\ud800": 1})
    response = await served.client.post("/rerank", content=body, headers=JSON)
    assert response.status_code == 422
    assert "lone surrogate" in check_shape(response)["message"]


async def test_a_long_field_name_is_answered_in_short(serve) -> None:
    served = await serve()
    response = await served.client.post("/rerank", json=GOOD | {"x" * 5000: 1})
    assert check_shape(response)["param"] == "x" * 200
