"""A ranking as a table for people."""

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eti_rank.cli.terminal import plain
from eti_rank.service.schemas import DocumentIn, RerankOut, ResultOut

SHOWN_CHARACTERS: Final = 200
"""Start of a document; the table cuts it to the terminal's width."""


def show(query: str, documents: Sequence[DocumentIn], answer: RerankOut, elapsed_s: float) -> None:
    """Print the table and what it cost on stdout.

    Args:
        query: what was asked.
        documents: as they were sent; results refer to them by index.
        answer: the ranking.
        elapsed_s: how long the answer took.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(title=Text(plain(query)), title_justify="left", box=box.SIMPLE_HEAD, expand=True)
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("id" if any(d.id is not None for d in documents) else "index", justify="right")
    table.add_column("document", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("tokens", justify="right")
    table.add_column("status")
    for rank, row in enumerate(answer.results, start=1):
        table.add_row(*map(Text, _cells(rank, row, documents[row.index])))
    console.print(table)
    for row in answer.results:
        if row.failure:
            console.print(Text(f"{_name(row)}: {plain(row.failure)}"))
    console.print(Text(_footer(answer, len(documents), elapsed_s)))


def _cells(rank: int, row: ResultOut, document: DocumentIn) -> tuple[str, ...]:
    text = f"{document.title}. {document.text}" if document.title else document.text
    return (
        str(rank),
        f"{row.relevance_score:.4f}",
        _name(row),
        plain(text[:SHOWN_CHARACTERS]),
        str(row.compute.prompt_tokens - row.compute.cached_tokens),
        row.status,
    )


def _name(row: ResultOut) -> str:
    return str(row.index) if row.id is None else plain(row.id)


def _footer(answer: RerankOut, documents: int, elapsed_s: float) -> str:
    usage, meta = answer.usage, answer.meta
    failed = f", {meta.failed} of them failed" if meta.failed else ""
    calibrated = "calibrated" if meta.calibrated else "not calibrated"
    return (
        f"{documents} documents{failed}; {usage.prompt_tokens} tokens, {usage.cached_tokens} of them cached; "
        f"{meta.entropic_time_nats:.2f} nats resolved; {elapsed_s:.1f} s\n"
        f"{plain(answer.model)}, {meta.score_type} scores, {calibrated}; "
        f"stopped by {meta.stopped_by}, policy {meta.policy}"
    )
