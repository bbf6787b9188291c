"""An SGLang server, or a router, as far as `SglangRemote` speaks to one, around a scripted engine.

It runs in a thread of its own on a loopback port and can die, come back, fall silent and misbehave.
"""

import asyncio
import atexit
import json
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from eti_rank import __version__
from eti_rank.engine import wire
from eti_rank.engine.handshake import PROBE
from eti_rank.engine.protocol import Engine, GenerationStep, Labels, Likelihood, ScoringStep
from eti_rank.engine.scripted import VOCABULARY_SIZE, Scripted
from eti_rank.engine.sglang_remote import SglangRemote
from eti_rank.errors import EngineError, UnsupportedRequest
from eti_rank.settings import EngineSettings

T = TypeVar("T")
ARCHITECTURE = "LlamaForCausalLM"
DROP = "drop"
"""Outcome of a step: the connection is cut off."""
SILENCE = "silence"
"""Outcome of a step: no answer, until it is aborted."""
PLACES = 4
HOOKS = tuple(sorted((wire.TELEMETRY, *EngineSettings().hooks)))
_ABORTED = {"finish_reason": {"type": "abort", "message": "Aborted"}}


def write_config(folder: Path, architecture: str = ARCHITECTURE) -> str:
    """A checkpoint folder with nothing but its ``config.json``; its name."""
    config = {"architectures": [architecture], "vocab_size": VOCABULARY_SIZE}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


class FakeWorker:
    """One server; every attribute may be changed while it runs."""

    def __init__(self, *, token_s: float = 0.0, **info: Any) -> None:
        self.token_s = token_s
        self.info = {
            "model_path": "fake",
            "architectures": [ARCHITECTURE],
            "device": "cpu",
            "dtype": "float32",
            "max_req_input_len": 513,
            "max_running_requests": PLACES,
            "enable_custom_logit_processor": False,
            "skip_tokenizer_init": False,
        } | info
        self.api_key: str | None = None
        self.stamp: wire.Stamp | None = wire.Stamp(__version__, HOOKS)
        self.offset_nats = 0.0
        """Added to every log-probability, as other weights would."""
        self.draining = False
        self.silent = False
        """Nothing is answered any more."""
        self.outcomes: list[int | str] = []
        """Of the next steps, probes excepted: an HTTP status, DROP or SILENCE; then all go well."""
        self.drop_after = 0
        """Of a generation: cut the connection off after so many tokens; 0 does not."""
        self.behind: list[FakeWorker] | None = None
        """A router's workers, all of which it takes for healthy; None for a worker."""
        self.bodies: list[dict[str, Any]] = []
        """Of all steps, probes excepted."""
        self.aborted: list[str] = []
        self.flushed = 0
        self.open: dict[str, asyncio.Future[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self) -> "FakeWorker":
        """Answer, with an empty cache; again after a death, at the same port."""
        self._call(self._start())
        return self

    def kill(self) -> None:
        """Cut all connections off and answer no more, as a crash would."""
        self._call(self._kill())

    def close(self) -> None:
        """Kill it and end its thread."""
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    @property
    def rids(self) -> list[str]:
        return [body["rid"] for body in self.bodies]

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=10)

    async def _start(self) -> None:
        settings = EngineSettings(max_running_requests=PLACES)
        self._engine = Scripted(settings, "fake", 512, token_s=self.token_s)
        await self._engine.start()
        app = web.Application(middlewares=[self._gate])
        app.router.add_get("/health", self._health)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/flush_cache", self._flush)
        if self.behind is None:
            app.router.add_get("/model_info", self._info)
            app.router.add_get("/server_info", self._info)
            app.router.add_post("/abort_request", self._abort)
        else:
            app.router.add_get("/workers", self._workers)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        if self._socket.fileno() < 0:
            self._socket = socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, self._socket).start()

    async def _kill(self) -> None:
        if self._runner is None:
            self._socket.close()
            return
        runner, self._runner = self._runner, None
        assert runner.server is not None
        for site in list(runner.sites):
            await site.stop()
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        self._engine.kill()
        others = asyncio.all_tasks() - {asyncio.current_task()}  # aiohttp would wait for handlers
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await runner.cleanup()
        self._socket.close()

    @web.middleware
    async def _gate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.silent:
            await asyncio.Future()
        wanted = f"Bearer {self.api_key}" if self.api_key else None
        if wanted and request.headers.get("Authorization") != wanted and request.path != "/health":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.draining else 200)

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(self.info)

    async def _workers(self, request: web.Request) -> web.Response:
        listed = [{"url": worker.url, "is_healthy": True} for worker in self.behind or ()]
        unhealthy = {"url": "http://127.0.0.1:1", "is_healthy": False}
        return web.json_response({"workers": [*listed, unhealthy]})

    async def _flush(self, request: web.Request) -> web.Response:
        self.flushed += 1
        return web.Response(status=400 if self.open else 200)

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborted.append(rid)
        for name, ended in self.open.items():
            if name.startswith(rid) and not ended.done():
                ended.set_result(None)
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        outcome: int | str | None = None
        if body["input_ids"] != list(PROBE.token_ids):
            self.bodies.append(body)
            outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome == DROP:
            assert request.transport is not None
            request.transport.abort()
        if isinstance(outcome, int):
            return web.json_response({"error": {"message": f"told to say {outcome}"}}, status=outcome)
        if body.get("stream") and outcome is None:
            return await self._stream(request, body)
        ended = self.open[body["rid"]] = self._loop.create_future()
        answer = asyncio.ensure_future(self._answer(body)) if outcome is None else self._loop.create_future()
        try:
            await asyncio.wait({answer, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return web.json_response({"meta_info": {"finish_reason": {"type": "abort"}}})
            return answer.result()
        finally:
            answer.cancel()
            del self.open[body["rid"]]

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Server-sent events, each with everything so far; refusals come in the stream, as from SGLang."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(answer: Any) -> None:
            await response.write(b"data: " + json.dumps(answer).encode() + b"\n\n")

        ended = self.open[body["rid"]] = self._loop.create_future()
        tokens: list[int] = []
        text, reports = "", []
        try:
            async for piece in self._engine.generate(_generation(body)):
                if ended.done():
                    await send({"output_ids": tokens, "text": text, "meta_info": _ABORTED})
                    break
                tokens += piece.token_ids
                text += piece.text
                reports += wire.encode_reports(piece.reports)
                meta_info: dict[str, Any] = {
                    "finish_reason": {"type": piece.finish} if piece.finish else None,
                    "cached_tokens": piece.cached_tokens,
                    wire.REPORTS_KEY: reports,
                }
                if self.stamp is not None:
                    meta_info[wire.KEY] = [self.stamp.encode()]
                await send({"output_ids": tokens, "text": text, "meta_info": meta_info})
                if self.drop_after and len(tokens) >= self.drop_after:
                    assert request.transport is not None
                    request.transport.abort()
        except EngineError as error:
            await send({"error": {"message": str(error)}})
        finally:
            del self.open[body["rid"]]
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _answer(self, body: dict[str, Any]) -> web.Response:
        step = _step(body)
        try:
            evidence = await self._engine.score(step)
        except UnsupportedRequest as refusal:
            return web.json_response({"error": {"message": str(refusal)}}, status=400)
        except EngineError as error:
            return web.json_response({"error": {"message": str(error)}}, status=500)
        logprobs = [value + self.offset_nats for value in evidence.logprobs]
        meta_info: dict[str, Any] = {
            "id": body["rid"],
            "finish_reason": {"type": "length"},
            "cached_tokens": evidence.cached_tokens,
        }
        if isinstance(step.readout, Labels):
            read = list(zip(logprobs, step.readout.token_ids, [None] * len(logprobs), strict=True))
            meta_info["output_token_ids_logprobs"] = [read]
        else:
            tokens = step.token_ids[step.readout.start - 1 :]
            read = list(zip([None, *logprobs], tokens, [None] * len(tokens), strict=True))
            meta_info["input_token_logprobs"] = read
        if self.stamp is not None:
            meta_info[wire.KEY] = [self.stamp.encode()]
        return web.json_response({"output_ids": [], "meta_info": meta_info})


def _generation(body: dict[str, Any]) -> GenerationStep:
    params = body["sampling_params"]
    told = wire.StepParams.decode(params["custom_params"])
    return GenerationStep(
        step_id=body["rid"],
        token_ids=tuple(body["input_ids"]),
        max_new_tokens=params["max_new_tokens"],
        control=told.decoding if told else None,
    )


def _step(body: dict[str, Any]) -> ScoringStep:
    labels = body.get("token_ids_logprob")
    readout = Labels(tuple(labels)) if labels else Likelihood(body["logprob_start_len"] + 1)
    return ScoringStep(step_id=body["rid"], token_ids=tuple(body["input_ids"]), readout=readout)


@contextmanager
def running(*workers: FakeWorker) -> Iterator[None]:
    """Start workers, and close them afterwards."""
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.close()


_by_url: dict[str, FakeWorker] = {}


def engine_on_fake_worker() -> SglangRemote:
    """A new engine on a worker of its own, for the engines' contract."""
    worker = FakeWorker(token_s=0.0002).start()
    _by_url[worker.url] = worker
    atexit.register(worker.close)
    folder = Path(tempfile.mkdtemp(prefix="eti-rank-"))
    remote = {"urls": [worker.url], "health_interval_s": 0.1, "down_after_s": 0.2}
    settings = EngineSettings.model_validate({"kind": "sglang_remote", "remote": remote})
    return SglangRemote(settings, write_config(folder), 256)


def kill_fake_worker(engine: Engine) -> None:
    """Let the worker of `engine_on_fake_worker` die."""
    assert isinstance(engine, SglangRemote)
    for url in engine.workers:
        _by_url[url].kill()
