"""Reads the documents that a command line names."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from eti_rank.errors import InvalidInput
from eti_rank.service.payload import invalid_field
from eti_rank.service.schemas import DocumentIn

STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Reading:
    """The documents of a source in order, and a sentence for each line that is none."""

    documents: tuple[DocumentIn, ...]
    faults: tuple[str, ...]


def read_documents(source: str) -> Reading:
    """Read JSONL (each line a string or an object with `text`), or plain lines if the suffix is ``.txt``.

    Blank lines are passed over; a malformed line becomes a fault and the others are read.

    Args:
        source: path, or ``-`` for JSONL on standard input.

    Raises:
        InvalidInput: the source cannot be opened, or holds no document.
    """
    try:
        content = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{source}: {error.strerror}", param="--documents") from None
    documents: list[DocumentIn] = []
    faults: list[str] = []
    for number, line in _lines(content):
        try:
            documents.append(_document(line, as_text=source.endswith(".txt")))
        except (ValueError, RecursionError) as error:
            faults.append(f"{'stdin' if source == STDIN else source}:{number}: {_reason(error)}")
    if not documents and not faults:
        raise InvalidInput(f"{source} holds no documents", param="--documents")
    return Reading(tuple(documents), tuple(faults))


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line.removesuffix(b"\r")


def _document(line: bytes, *, as_text: bool) -> DocumentIn:
    text = line.decode()
    return DocumentIn(text=text) if as_text else DocumentIn.model_validate(json.loads(text))


def _reason(error: ValueError | RecursionError) -> str:
    match error:
        case ValidationError():
            fault = invalid_field(error.errors(include_url=False))
            return f"{fault.param}: {fault}" if fault.param else str(fault)
        case json.JSONDecodeError():
            return f"not JSON: {error.msg} at column {error.colno}"
        case UnicodeDecodeError():
            return f"not UTF-8 at byte {error.start + 1} of the line"
        case RecursionError():
            return "nested too deeply"
        case _:
            return f"not JSON: {error}"
