"""One report per chosen token, filled by whichever hooks are on."""

from dataclasses import replace
from typing import Any

from eti_rank.engine import wire
from eti_rank.runtime.forward_rows import Row


def record(row: Row, **fields: Any) -> None:
    """Add fields to the report of the token that this step chooses; of `wire.TokenReport`.

    A step inside the prompt chooses nothing, and reports nothing.
    """
    if not row.ends_prompt:
        return
    kept = row.state.reports
    if len(kept) <= row.generated_tokens:
        kept.append(wire.TokenReport(**fields))
    else:
        kept[row.generated_tokens] = replace(kept[row.generated_tokens], **fields)
