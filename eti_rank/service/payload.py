"""From bytes to a checked body, with every refusal as an error of our tree."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from pydantic import ValidationError

from eti_rank.errors import InputTooLarge, InvalidField, MalformedInput
from eti_rank.service.schemas import RerankIn

PLAIN_WORDS: Final[Mapping[str, str]] = {
    "extra_forbidden": "unknown field",
    "missing": "required",
    "model_type": "must be an object",
    "string_unicode": "a name or value holds a lone surrogate, which is not a character",
}
"""Clearer texts than pydantic's, by its error type."""


def parse_json(body: bytes) -> object:
    """The JSON value in `body`; lone surrogates are kept, NaN and Infinity are not JSON.

    Raises:
        MalformedInput: it is not JSON, or nested too deeply to read.
    """
    try:
        value: object = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise MalformedInput("the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise MalformedInput(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise MalformedInput(f"the body is not valid JSON: {error}") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_rerank(payload: object, *, max_documents: int) -> RerankIn:
    """The checked body of a rerank request.

    Raises:
        InputTooLarge: more than `max_documents` documents.
        InvalidField: the first field at fault.
    """
    documents = payload.get("documents") if isinstance(payload, dict) else None
    if isinstance(documents, list) and len(documents) > max_documents:
        raise InputTooLarge(f"{len(documents)} documents; the limit is {max_documents}", param="documents")
    try:
        return RerankIn.model_validate(payload)
    except ValidationError as error:
        raise invalid_field(error.errors(include_url=False)) from None


def invalid_field(faults: Sequence[Mapping[str, Any]]) -> InvalidField:
    """Pydantic's error list as one error: the first fault, and how many others there are."""
    first, *others = faults
    message = PLAIN_WORDS.get(first["type"], first["msg"])
    if others:
        message += f" (and {len(others)} more fault{'s' if len(others) > 1 else ''})"
    return InvalidField(message, param=".".join(map(str, first["loc"])) or None)
