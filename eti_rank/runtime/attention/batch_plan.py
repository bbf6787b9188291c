"""What the policy (`runtime.pruning`) says about each row of a forward batch; shared by both backends.

KV that is written while something is left out must never serve another request. The prompt itself is
dense, and SGLang has put it into its prefix cache by the time that the first token is decoded. From the
first pruned step on the request is marked `skip_radix_cache_insert`, and nothing that it writes from then
on is inserted, however it ends. A retracted request is prefilled anew, densely, from what the cache holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from eti_rank.engine import wire
from eti_rank.runtime import forward_rows, pruning, reports
from eti_rank.runtime.forward_rows import Row
from eti_rank.runtime.pruning import BlockPlan, Positions

NOT_CACHED: Final = "skip_radix_cache_insert"
NO_LOG_PROBABILITIES: Final = (
    "surprisal 'model' needs the log-probabilities of the whole prompt: "
    "return_logprob with logprob_start_len 0"
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row whose last queries of this forward pass measure its blocks, in every layer."""

    row: int
    window: int
    """How many queries, >= 1."""
    end: int
    """One past the last of them, among the queries of the batch."""
    context_tokens: int
    plan: BlockPlan


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What is special about one forward batch."""

    kept: tuple[Positions | None, ...]
    """Per row of a decoding batch, what it attends to (None: everything); empty where no row prunes."""
    measurements: tuple[Measurement, ...]


NOTHING: Final = BatchPlan(kept=(), measurements=())
"""A batch for the parent class alone."""


def plan_batch(forward_batch: Any, refusal: str | None = None) -> BatchPlan:
    """Ask the policy about each row; called once per forward pass, before its first layer.

    Marks the rows as seen by the hook and records what was kept. Mutates the plans of the requests.

    Args:
        forward_batch: SGLang's.
        refusal: why this backend cannot leave anything out; None where it can.
    """
    rows = forward_rows.of(forward_batch)
    asking = [place for place, row in enumerate(rows) if _asks(row)]
    for row in rows:
        row.state.ran.add(wire.ATTENTION)
    if not asking:
        return NOTHING
    if refusal is None and forward_batch.spec_info is not None:
        refusal = "block-sparse attention does not run beside speculative decoding"
    for place in asking if refusal is not None else ():
        pruning.refuse(rows[place].state, f"{refusal}; the request attends to everything")
    mode, plan = forward_batch.forward_mode, NOTHING
    if refusal is None and mode.is_decode():
        plan = _plan_decode(forward_batch.seq_lens_cpu.tolist(), rows)
    elif refusal is None and mode.is_extend():
        plan = _plan_extend(
            forward_batch.seq_lens_cpu.tolist(), list(forward_batch.extend_seq_lens_cpu), rows
        )
    for place in asking:
        _report(rows[place])
    return plan


def _plan_decode(contexts: Sequence[int], rows: Sequence[Row]) -> BatchPlan:
    kept: list[Positions | None] = [None] * len(rows)
    measurements = []
    for place, (row, context) in enumerate(zip(rows, contexts, strict=True)):
        plan = _plan_of(row)
        if plan is None:
            continue
        step = pruning.decide(row.state, plan, context, _log_probabilities(row))
        kept[place] = step.kept
        if step.kept is not None:
            setattr(row.request, NOT_CACHED, True)
        if step.measures:
            measurements.append(
                Measurement(row=place, window=1, end=place + 1, context_tokens=context, plan=plan)
            )
    some = any(positions is not None for positions in kept)
    return BatchPlan(kept=tuple(kept) if some else (), measurements=tuple(measurements))


def _plan_extend(contexts: Sequence[int], new_tokens: Sequence[int], rows: Sequence[Row]) -> BatchPlan:
    end, measurements = 0, []
    for place, (row, context, new) in enumerate(zip(rows, contexts, new_tokens, strict=True)):
        end += new
        plan = _plan_of(row) if row.ends_prompt else None
        if plan is not None and (window := plan.begin_prompt(new)):
            measurements.append(
                Measurement(row=place, window=window, end=end, context_tokens=context, plan=plan)
            )
    return BatchPlan(kept=(), measurements=tuple(measurements))


def _asks(row: Row) -> bool:
    return row.state.control is not None and row.state.control.pruning is not None


def _plan_of(row: Row) -> BlockPlan | None:
    """The row's plan; None for a row that does not ask, or that is refused here and now."""
    plan = pruning.plan_of(row.state, row.request.origin_input_ids)
    if plan is None:
        return None
    if not hasattr(row.request, NOT_CACHED):
        pruning.refuse(row.state, f"this SGLang cannot keep pruned KV out of its cache: no Req.{NOT_CACHED}")
        return None
    if _surprisal(row) == "model" and not (row.request.return_logprob and row.request.logprob_start_len == 0):
        pruning.refuse(row.state, NO_LOG_PROBABILITIES)
        return None
    return plan


def _surprisal(row: Row) -> str:
    control = row.state.control
    assert control is not None
    assert control.pruning is not None
    return control.pruning.surprisal


def _log_probabilities(row: Row) -> Sequence[float | None] | None:
    """Of the prompt's tokens; None where they are not wanted or not there yet."""
    if _surprisal(row) != "model":
        return None
    values: Sequence[float | None] | None = row.request.logprob.input_token_logprobs_val
    return values


def _report(row: Row) -> None:
    step = pruning.last_step(row.state)
    assert step is not None
    reports.record(row, kept_fraction=step[0], dropped_mass=step[1])
