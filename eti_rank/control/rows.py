"""Batches of records: one record per request outside a step, one record of [B] arrays inside it.

The laws take records whose fields are numbers or arrays [B]. A scheduler's batch changes from step to
step, so it keeps one record of numbers per request, stacks those of the batch, and splits the answer.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from eti_rank.errors import DomainError

Record = TypeVar("Record")


def stack(records: Sequence[Record]) -> Record:
    """One record whose every field holds the records' values along a new first axis.

    Args:
        records: at least one, all of the same dataclass; nested dataclasses are stacked in turn.

    Raises:
        DomainError: no record, or records of different classes.
    """
    if not records or len({type(record) for record in records}) != 1:
        raise DomainError(f"stack needs records of one class, got {[type(r).__name__ for r in records]}")
    columns = {name: [getattr(record, name) for record in records] for name in _names(records[0])}
    stacked: Any = {
        name: stack(column) if is_dataclass(column[0]) else np.stack([np.asarray(value) for value in column])
        for name, column in columns.items()
    }
    return replace(records[0], **stacked)  # type: ignore[type-var]


def split(record: Record, rows: int) -> list[Record]:
    """The inverse of `stack`: one record of numbers per row.

    Args:
        record: each field is a number (shared by all rows) or has `rows` as its first axis.
        rows: B.
    """
    columns = {name: getattr(record, name) for name in _names(record)}
    return [
        replace(record, **{name: _row(column, row) for name, column in columns.items()})  # type: ignore[type-var]
        for row in range(rows)
    ]


def _names(record: object) -> list[str]:
    if not is_dataclass(record):
        raise DomainError(f"rows are dataclasses, got {type(record).__name__}")
    return [field.name for field in fields(record)]


def _row(column: Any, row: int) -> Any:
    if is_dataclass(column):
        return replace(column, **{name: _row(getattr(column, name), row) for name in _names(column)})  # type: ignore[type-var]
    return column if np.ndim(column) == 0 else column[row]
