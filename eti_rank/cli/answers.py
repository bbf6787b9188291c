"""Gets a ranking, from a running service or from an engine of our own."""

import asyncio
import json
import uuid
from typing import Any

import httpx
from pydantic import ValidationError

from eti_rank.errors import EngineUnavailable, EtiRankError, InputTooLarge, InvalidField, MalformedInput
from eti_rank.service.backend import build_backend
from eti_rank.service.payload import read_rerank
from eti_rank.service.schemas import ErrorOut, RerankOut
from eti_rank.settings import Settings


def ask_service(url: str, body: dict[str, Any]) -> RerankOut:
    """Let a running service answer.

    Raises:
        InvalidInput: it refused the request.
        EngineUnavailable: it cannot be reached, is not ready, or is no eti-rank.
    """
    target = f"{url.rstrip('/')}/v1/rerank"
    try:
        response = httpx.post(
            target,
            content=json.dumps(body),
            headers={"content-type": "application/json"},
            timeout=httpx.Timeout(10.0, read=None),
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EngineUnavailable(f"no answer from {target}: {error}") from None
    try:
        if response.is_success:
            return RerankOut.model_validate_json(response.content)
        error_body = ErrorOut.model_validate_json(response.content).error
    except ValidationError:
        raise EngineUnavailable(
            f"{target} answered {response.status_code} in an unknown form; is it eti-rank?"
        ) from None
    raise _refusal(response.status_code, error_body.message, error_body.param)


def _refusal(status: int, message: str, param: str | None) -> EtiRankError:
    match status:
        case 400:
            return MalformedInput(message, param=param)
        case 413:
            return InputTooLarge(message, param=param)
        case 429 | 500 | 502 | 503 | 504:
            return EngineUnavailable(f"the service answered {status}: {message}")
        case _:
            return InvalidField(message, param=param)


def ask_own_engine(settings: Settings, body: dict[str, Any]) -> RerankOut:
    """Start an engine, let it answer as the service would, and stop it.

    Raises:
        InvalidInput: the request is wrong.
        ConfigurationError: model or engine cannot be set up this way.
        EngineError: the engine did not start, or died.
    """
    asked = read_rerank(body, max_documents=settings.limits.max_documents)
    backend = build_backend(settings)

    async def answer() -> RerankOut:
        try:
            await backend.engine.start()
            ranking = await backend.reranker.rerank(asked.to_request(asked.request_id or uuid.uuid4().hex))
        finally:
            await backend.engine.close()
        return RerankOut.of(ranking, top_n=asked.top_n, return_documents=asked.return_documents)

    return asyncio.run(answer())
