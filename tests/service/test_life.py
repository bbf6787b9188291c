"""Health, readiness, information, request ids, and clients that go away."""

import asyncio
import json
import logging

import pytest

from eti_rank import __version__
from eti_rank.engine.protocol import EngineState
from eti_rank.engine.scripted import Scripted
from eti_rank.errors import HookError
from eti_rank.service.logs import OneLine
from eti_rank.settings import EngineSettings, LimitSettings
from tests.rerank_double import DoubleModel, scripted_engine


class MovedHook(Scripted):
    """Its start finds a hook's target gone."""

    async def start(self) -> None:
        raise HookError("sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority moved")


async def test_health_answers_while_the_engine_starts(serve) -> None:
    served = await serve(make=lambda: Scripted(EngineSettings(), "m", 100, start_s=30.0), ready=False)
    await asyncio.sleep(0.01)
    assert (await served.client.get("/healthz")).json() == {"status": "ok"}
    ready = await served.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["error"]["type"] == "not_ready"
    assert ready.json()["error"]["message"] == "the engine is starting"
    answer = await served.rerank(["a"])
    assert answer.status_code == 503
    info = (await served.client.get("/info")).json()
    assert info["engine"]["state"] == "starting"
    assert info["engine"]["description"] is None


async def test_bad_requests_are_refused_as_such_while_the_engine_starts(serve) -> None:
    served = await serve(make=lambda: Scripted(EngineSettings(), "m", 100, start_s=30.0), ready=False)
    assert (await served.rerank([])).status_code == 422


async def test_a_moved_hook_keeps_it_red_and_is_named(serve) -> None:
    served = await serve(make=lambda: MovedHook(EngineSettings(), "m", 100), ready=False)
    await served.reach(EngineState.DOWN)
    await asyncio.sleep(0.1)
    ready = await served.client.get("/readyz")
    assert ready.status_code == 503
    assert "calc_priority moved" in ready.json()["error"]["message"]
    assert len(served.engines) == 1


async def test_wrong_golden_scores_keep_it_red(serve) -> None:
    served = await serve(model=DoubleModel(golden=[("q", "a score=1", 7.0)]), ready=False)
    await served.reach(EngineState.DOWN)
    ready = await served.client.get("/readyz")
    assert ready.status_code == 503
    assert "golden score" in ready.json()["error"]["message"]


async def test_right_golden_scores_turn_it_green(serve) -> None:
    served = await serve(model=DoubleModel(golden=[("q", "a score=1", 1.0)]))
    assert (await served.client.get("/readyz")).json() == {"status": "ready"}


async def test_after_a_death_it_is_red_then_restarts_and_serves(serve) -> None:
    served = await serve(make=lambda: scripted_engine(token_s=0.02))
    running = asyncio.create_task(served.rerank([f"document {n}" for n in range(50)]))
    await asyncio.sleep(0.05)
    served.engines[0].kill()
    ready = await served.client.get("/readyz")
    assert ready.status_code == 503
    answer = await asyncio.wait_for(running, 2.0)
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "not_ready"
    await served.reach(EngineState.READY)
    assert (await served.client.get("/readyz")).status_code == 200
    assert (await served.rerank(["a"])).status_code == 200
    info = (await served.client.get("/info")).json()["engine"]
    assert info["restarts"] == 1
    assert info["last_error"] == "the runtime died"


async def test_info_is_complete(serve) -> None:
    served = await serve(make=lambda: Scripted(EngineSettings(), "/home/me/models/double-v1", 100))
    info = (await served.client.get("/info")).json()
    assert info["version"] == __version__
    assert (info["profile"], info["template"], info["score_type"]) == ("double", "double@1", "label")
    assert info["policies"] == ["full"]
    assert info["max_query_tokens"] == 100
    assert info["limits"] == LimitSettings().model_dump()
    engine = info["engine"]
    assert (engine["state"], engine["reason"], engine["restarts"]) == ("ready", "the engine is ready", 0)
    assert engine["description"]["model"] == "double-v1"
    assert engine["description"]["capabilities"] == ["label", "likelihood"]


async def test_the_api_description_has_the_body(serve) -> None:
    served = await serve()
    document = (await served.client.get("/openapi.json")).json()
    assert sorted(document["paths"]) == [
        "/healthz",
        "/info",
        "/readyz",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
    ]
    operation = document["paths"]["/rerank"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/RerankIn")
    schemas = document["components"]["schemas"]
    assert {"RerankIn", "DocumentIn", "BudgetIn", "RerankOut", "ErrorOut"} <= set(schemas)
    names = set(json.dumps(document).split('"#/components/schemas/')[1:])
    assert {name.split('"')[0] for name in names} <= set(schemas)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("abc-1.2:3_4", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("a b", False),
        ("-a", False),
        ("", False),
        ("a%0ab", False),
    ],
)
async def test_a_request_id_is_kept_if_it_is_safe(serve, sent: str, kept: bool) -> None:
    served = await serve()
    answer = await served.client.get("/healthz", headers={"x-request-id": sent})
    assert (answer.headers["x-request-id"] == sent) == kept
    assert len(answer.headers["x-request-id"]) >= 1


async def test_the_id_in_the_body_of_the_request_wins(serve) -> None:
    served = await serve()
    body = {"query": "q", "documents": ["a"], "request_id": "body"}
    answer = await served.client.post("/rerank", json=body, headers={"x-request-id": "header"})
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("body", "body")
    body.pop("request_id")
    answer = await served.client.post("/rerank", json=body, headers={"x-request-id": "header"})
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("header", "header")


async def test_the_log_has_ids_and_no_content(serve, caplog) -> None:
    served = await serve()
    with caplog.at_level(logging.DEBUG, logger="eti_rank"):
        await served.client.post(
            "/rerank",
            json={"query": "secret question", "documents": ["secret answer", "\0"], "request_id": "r-1"},
        )
        await served.client.get("/a%0aINFO forged?secret=1")
    assert "POST /rerank 200" in caplog.text and "id=r-1" in caplog.text
    assert "secret" not in caplog.text
    assert "GET /a%0aINFO%20forged 404" in caplog.text


async def test_probes_are_logged_at_debug_only(serve, caplog) -> None:
    served = await serve()
    with caplog.at_level(logging.DEBUG, logger="eti_rank"):
        for path in ("/healthz", "/readyz", "/info"):
            await served.client.get(path)
    levels = {record.args[1]: record.levelname for record in caplog.records if record.args}
    assert levels == {"/healthz": "DEBUG", "/readyz": "DEBUG", "/info": "INFO"}


def test_no_text_can_forge_a_record() -> None:
    try:
        raise ValueError("first\n2026-01-01 info forged: second")
    except ValueError:
        record = logging.makeLogRecord({"msg": "a\nb\x1b[31m %s", "args": ("c\r\n",), "levelname": "ERROR"})
        import sys

        record.exc_info = sys.exc_info()
    lines = OneLine().format(record).split("\n")
    assert lines[0].endswith(r"a\nb\x1b[31m c\r\n")
    assert all(line.startswith("    | ") for line in lines[1:])


async def test_a_client_that_goes_away_cancels_its_work(serve, caplog) -> None:
    """Speaks ASGI itself: the client sends a body, waits a little, and is gone."""
    served = await serve(make=lambda: scripted_engine(token_s=0.05))
    body = json.dumps({"query": "q", "documents": [f"d {n}" for n in range(30)]}).encode()
    gone = asyncio.Event()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[dict] = []

    async def receive() -> dict:
        if message := next(messages, None):
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/rerank",
        "raw_path": b"/rerank",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
    }
    app = served.client._transport.app
    with caplog.at_level(logging.INFO, logger="eti_rank"):
        call = asyncio.create_task(app(scope, receive, send))
        async with asyncio.timeout(10):
            while not served.engines[0]._open:
                await asyncio.sleep(0.005)
            gone.set()
            await call
    assert sent == []
    await asyncio.sleep(0)
    assert not served.engines[0]._open
    assert "POST /rerank 499" in caplog.text
