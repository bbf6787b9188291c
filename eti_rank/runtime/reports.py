"""One report per generated token, to which the hooks that are on add what they know."""

import dataclasses
from typing import Any, Protocol

from eti_rank.engine import wire
from eti_rank.runtime.request_state import RequestState


class ReportedRow(Protocol):
    """What of a row of the forward batch matters here (`forward_rows.Row`)."""

    @property
    def state(self) -> RequestState: ...  # noqa: D102
    @property
    def generated_tokens(self) -> int: ...  # noqa: D102
    @property
    def ends_prompt(self) -> bool: ...  # noqa: D102


def record(row: ReportedRow, **fields: Any) -> None:
    """Fill fields of the report of the token that this step chooses for the row.

    The hooks call it in any order, each for its own fields. A chunk of a prompt that more chunks follow
    chooses no token, and nothing is recorded for it.
    """
    if not row.ends_prompt:
        return
    reports, place = row.state.reports, row.generated_tokens
    while len(reports) <= place:
        reports.append(wire.TokenReport())
    reports[place] = dataclasses.replace(reports[place], **fields)
