"""Block-sparse attention as two of SGLang's attention backends: `eti_torch` and `eti_flashinfer`.

Seam: SGLang's registry of backends, and the list of names that its arguments accept. Which of them an
engine uses is its argument `attention_backend` (`engine/sglang_local/arguments`).
"""

import importlib
from typing import Any, Final

from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.runtime_context import get_parallel

from eti_rank.engine import wire
from eti_rank.errors import HookError

TORCH: Final = "eti_torch"
FLASHINFER: Final = "eti_flashinfer"


def install(_config: wire.PluginConfig) -> None:
    """Make the backends known to this process; neither is imported before it is used."""
    for name, create in ((TORCH, _create_torch), (FLASHINFER, _create_flashinfer)):
        register_attention_backend(name)(create)
        if name not in ATTENTION_BACKEND_CHOICES:
            add_attention_backend_choices([name])


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
