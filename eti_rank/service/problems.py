"""Errors as HTTP answers: one table for our error tree, one shape for everything.

{"error": {"type": ..., "message": ..., "param": ..., "request_id": ...}}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from eti_rank import errors
from eti_rank.service.payload import invalid_field
from eti_rank.service.schemas import printable

MAX_PARAM_CHARACTERS: Final = 200
"""A `param` names fields of the request, whose names the caller chooses."""


@dataclass(frozen=True, slots=True)
class Problem:
    """How a kind of error is answered; without `shown` its text stays in the log."""

    status: int
    type: str
    shown: bool = True


INTERNAL: Final = Problem(500, "internal_error", shown=False)
UNAVAILABLE: Final = Problem(503, "not_ready")

PROBLEMS: Final[Mapping[type[errors.EtiRankError], Problem]] = {
    errors.EtiRankError: INTERNAL,
    errors.InvalidInput: Problem(422, "invalid_request"),
    errors.MalformedInput: Problem(400, "malformed_request"),
    errors.InputTooLarge: Problem(413, "too_large"),
    errors.InvalidField: Problem(422, "invalid_field"),
    errors.DomainError: INTERNAL,
    errors.ConfigurationError: UNAVAILABLE,
    errors.ProfileError: UNAVAILABLE,
    errors.ModelUnavailable: UNAVAILABLE,
    errors.EngineError: UNAVAILABLE,
    errors.EngineUnavailable: UNAVAILABLE,
    errors.UnsupportedRequest: Problem(422, "unsupported_request"),
    errors.HookError: UNAVAILABLE,
    errors.ServiceError: UNAVAILABLE,
    errors.Overloaded: Problem(429, "overloaded"),
}

FRAMEWORK_TYPES: Final[Mapping[int, str]] = {
    404: "not_found",
    405: "method_not_allowed",
    415: "unsupported_media_type",
}


def problem_for(error: errors.EtiRankError) -> Problem:
    """The entry of the error's own class, else of its nearest ancestor."""
    return next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)


def answer(error: errors.EtiRankError, request_id: str) -> JSONResponse:
    """The answer to an error of our tree."""
    problem = problem_for(error)
    message = (
        str(error) if problem.shown else "an internal error occurred; the log has it under the request id"
    )
    headers = {}
    if isinstance(error, errors.Overloaded):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    param = error.param if isinstance(error, errors.InvalidInput) else None
    return shaped(problem.status, problem.type, message, request_id, param=param, headers=headers)


def internal_error(request_id: str) -> JSONResponse:
    """The answer to what nobody foresaw; says nothing about it."""
    return answer(errors.EtiRankError(), request_id)


def shaped(
    status: int,
    kind: str,
    message: str,
    request_id: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The one shape."""
    body = {
        "type": kind,
        "message": printable(message),
        "param": printable(param)[:MAX_PARAM_CHARACTERS] if param else None,
        "request_id": request_id,
    }
    return JSONResponse({"error": body}, status_code=status, headers=dict(headers or {}))


async def on_our_error(request: Request, error: Exception) -> JSONResponse:
    """Exception handler for our tree."""
    assert isinstance(error, errors.EtiRankError)
    return answer(error, request.state.request_id)


async def on_framework_error(request: Request, error: Exception) -> JSONResponse:
    """Exception handler for what the framework refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    kind = FRAMEWORK_TYPES.get(error.status_code, "invalid_request")
    message = f"{error.detail} ({request.method} {request.url.path})"
    return shaped(error.status_code, kind, message, request.state.request_id, headers=error.headers)


async def on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Exception handler for parameters that the framework validates itself."""
    assert isinstance(error, RequestValidationError)
    faults: Sequence[Any] = error.errors()
    return answer(invalid_field(faults), request.state.request_id)
