"""Carries our request states along SGLang's forward batch, row by row.

Seams: `ForwardBatch.init_new` turns the scheduler's batch, which knows its requests, into what the model
runner sees, which does not; `EagerRunner.load_batch` copies that into fixed buffers, for the attention
backend.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from eti_rank.runtime import request_state
from eti_rank.runtime.request_state import RequestState

INIT_NEW: Final = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new"
LOAD_BATCH: Final = "sglang.srt.model_executor.runner.eager_runner.EagerRunner.load_batch"
_ATTRIBUTE: Final = "eti_rank_rows"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a forward batch."""

    state: RequestState
    prompt_tokens: int
    generated_tokens: int
    """Chosen before this step; the step chooses the next one, unless it ends inside the prompt."""
    is_greedy: bool
    ends_prompt: bool
    """False for a chunk of a prompt that more chunks follow: what is sampled from it is thrown away."""
    request: Any
    """SGLang's own object."""


def install() -> None:
    """Register both hooks; SGLang applies them after all plugins are loaded."""
    HookRegistry.register(INIT_NEW, _attach, HookType.AROUND)
    HookRegistry.register(LOAD_BATCH, _carry, HookType.AROUND)


def of(forward_batch: Any) -> tuple[Row, ...]:
    """Rows in the order of the batch; empty for a batch that was not made of requests."""
    rows: tuple[Row, ...] = getattr(forward_batch, _ATTRIBUTE, ())
    return rows


def _attach(original: Callable[..., Any], cls: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    forward_batch = original(cls, batch, *args, **kwargs)
    is_decode = batch.forward_mode.is_decode()
    setattr(forward_batch, _ATTRIBUTE, tuple(_row(req, is_decode) for req in batch.reqs or ()))
    return forward_batch


def _carry(original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    copy = original(runner, forward_batch, *args, **kwargs)
    setattr(copy, _ATTRIBUTE, of(forward_batch))
    return copy


def _row(req: Any, is_decode: bool) -> Row:
    return Row(
        state=request_state.of(req),
        prompt_tokens=len(req.origin_input_ids),
        generated_tokens=len(req.output_ids),
        is_greedy=req.sampling_params.top_k <= 1,
        ends_prompt=is_decode or req.extend_end == len(req.full_untruncated_fill_ids),
        request=req,
    )
