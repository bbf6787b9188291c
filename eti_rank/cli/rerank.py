"""`eti-rank rerank`: rank the documents of a file."""

import json
import sys
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eti_rank.cli.exit_codes import ExitCode
from eti_rank.cli.terminal import complain, quieten_libraries
from eti_rank.errors import InvalidInput

if TYPE_CHECKING:
    from eti_rank.cli.documents import Reading
    from eti_rank.service.schemas import RerankOut


def rerank(
    *,
    query: Annotated[str | None, typer.Option(help="What to rank the documents for.")] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="JSON Lines, each line a string or an object with `text`; plain lines if FILE ends in .txt; "
            "- reads JSON Lines from standard input.",
        ),
    ] = None,
    top_n: Annotated[int | None, typer.Option(min=1, help="How many results to show.")] = None,
    instruction: Annotated[
        str | None, typer.Option(help="Replaces the profile's own instruction, where it has one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the service would answer.")] = False,
    url: Annotated[
        str | None, typer.Option(envvar="ETI_RANK_URL", help="Ask this service, start no engine.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    example: Annotated[bool, typer.Option("--example", help="Rank the shipped example.")] = False,
) -> None:
    """Rank documents by their relevance to a query, best first.

    Exits with 1 if a line could not be read or a document could not be scored; the others are ranked.
    """
    query, reading = _inputs(query, documents, example=example)
    for fault in reading.faults:
        complain(fault)
    if not reading.documents:
        raise InvalidInput("no line could be read", param="--documents")

    body = {
        "query": query,
        "documents": [document.model_dump(exclude_none=True) for document in reading.documents],
        "top_n": top_n,
        "instruction": instruction,
    }
    started_s = time.perf_counter()
    answer = _answer({name: value for name, value in body.items() if value is not None}, url, config)
    elapsed_s = time.perf_counter() - started_s

    if as_json:
        sys.stdout.write(answer.model_dump_json() + "\n")
    else:
        from eti_rank.cli.table import show

        show(str(query), reading.documents, answer, elapsed_s)
    if reading.faults or answer.meta.failed:
        raise typer.Exit(ExitCode.INPUT_FAILED)


def _inputs(query: str | None, documents: str | None, *, example: bool) -> "tuple[str, Reading]":
    from eti_rank.cli.documents import Reading, read_documents
    from eti_rank.service.schemas import RerankIn

    if example and query is None and documents is None:
        shipped = resources.files("eti_rank.cli").joinpath("example.json").read_bytes()
        body = RerankIn.model_validate(json.loads(shipped))
        return body.query, Reading(tuple(body.documents), faults=())
    if example or query is None or documents is None:
        raise typer.BadParameter("give --query and --documents, or --example alone")
    return query, read_documents(documents)


def _answer(body: dict[str, Any], url: str | None, config: Path | None) -> "RerankOut":
    from eti_rank.cli.answers import ask_own_engine, ask_service

    if url:
        return ask_service(url, body)
    from eti_rank.service.logs import configure_logs
    from eti_rank.settings import load_settings

    quieten_libraries()
    configure_logs("info")
    return ask_own_engine(load_settings(config), body)
