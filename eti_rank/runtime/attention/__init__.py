"""Block-sparse attention as two of SGLang's attention backends: `eti_torch` and `eti_flashinfer`.

Seams: SGLang's registry of backends, and the list of names that its arguments accept; which of them an
engine uses is its argument `attention_backend` (`engine/sglang_local/arguments`).
`Req._compute_max_prefix_len` says how much of a prompt may come from the prefix cache: of one that prunes,
all but the window that measures its blocks, so that a cached prompt is pruned like a cold one.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_parallel

from eti_rank.engine import wire
from eti_rank.errors import HookError
from eti_rank.runtime import request_state

TORCH: Final = "eti_torch"
FLASHINFER: Final = "eti_flashinfer"
MAX_PREFIX: Final = "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len"


def install(_config: wire.PluginConfig) -> None:
    """Make the backends known to this process; neither is imported before it is used."""
    for name, create in ((TORCH, _create_torch), (FLASHINFER, _create_flashinfer)):
        register_attention_backend(name)(create)
        if name not in ATTENTION_BACKEND_CHOICES:
            add_attention_backend_choices([name])
    HookRegistry.register(MAX_PREFIX, _leave_the_window, HookType.AROUND)


def _leave_the_window(original: Callable[..., int], req: Any, input_len: int) -> int:
    limit, control = original(req, input_len), request_state.of(req).control
    if control is None or control.pruning is None:
        return limit
    return max(0, min(limit, input_len - control.pruning.window_tokens))


def _create_torch(runner: Any) -> Any:
    backend = importlib.import_module("eti_rank.runtime.attention.torch_backend")
    return backend.EtiTorchBackend(runner, _refusal())


def _create_flashinfer(runner: Any) -> Any:
    if str(runner.device).split(":")[0] != "cuda":
        raise HookError(f"{FLASHINFER} needs a CUDA device, and this engine runs on {runner.device}")
    backend = importlib.import_module("eti_rank.runtime.attention.flashinfer_backend")
    return backend.EtiFlashInferBackend(runner, _refusal())


def _refusal() -> str | None:
    """Why this process may leave nothing out.

    The ranks of a parallel engine must decide alike about the prefix cache, and each of them sees the
    attention of its own heads or layers alone.
    """
    parallel = get_parallel()
    if parallel.tp_size * parallel.pp_size > 1:
        return "block-sparse attention runs on a single rank"
    return None
