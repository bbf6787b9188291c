"""The routes."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from eti_rank import __version__
from eti_rank.engine.protocol import EngineState
from eti_rank.errors import EngineUnavailable
from eti_rank.service.backend import Backend
from eti_rank.service.connection import read_json_body, while_connected
from eti_rank.service.info import InfoOut
from eti_rank.service.openapi import BODY_REF
from eti_rank.service.payload import parse_json, read_rerank
from eti_rank.service.schemas import ErrorOut, RerankOut
from eti_rank.settings import LimitSettings

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": description}
    for status, description in {
        400: "not JSON",
        413: "body or list of documents above the limit",
        415: "not declared as JSON",
        422: "a field is wrong; `param` names it",
        503: "the engine is not ready",
    }.items()
}


def create_router(backend: Backend, limits: LimitSettings) -> APIRouter:
    """All routes, answering from one backend."""
    router = APIRouter()

    async def rerank(request: Request) -> Response:
        """Rank documents by their relevance to the query."""
        body = await read_json_body(request, limits.max_body_bytes)
        asked = read_rerank(parse_json(body), max_documents=limits.max_documents)
        request.state.request_id = asked.request_id or request.state.request_id
        _require_ready(backend)
        work = backend.reranker.rerank(asked.to_request(request.state.request_id))
        ranking = await while_connected(request, work)
        return _json(RerankOut.of(ranking, top_n=asked.top_n, return_documents=asked.return_documents))

    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        router.add_api_route(
            path,
            rerank,
            methods=["POST"],
            response_model=RerankOut,
            responses=REFUSALS,
            operation_id=path.strip("/").replace("/", "_"),
            openapi_extra={"requestBody": BODY_REF},
        )

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @router.get("/readyz", responses={503: REFUSALS[503]})
    async def readyz() -> dict[str, str]:
        """The engine runs, our hooks in it too, and the model reproduces its golden scores."""
        _require_ready(backend)
        return {"status": "ready"}

    @router.get("/info", response_model=InfoOut)
    async def info() -> Response:
        """What is served, with which limits, and how the engine is doing."""
        return _json(InfoOut.of(backend.model, backend.engine, limits, version=__version__))

    return router


def _require_ready(backend: Backend) -> None:
    if backend.engine.state is not EngineState.READY:
        raise EngineUnavailable(backend.engine.reason)


def _json(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")
