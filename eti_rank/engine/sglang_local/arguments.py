"""From our settings to SGLang's server arguments."""

import os
from typing import Any

from eti_rank.engine import handshake, wire
from eti_rank.environment.devices import cuda_device_present
from eti_rank.errors import ConfigurationError
from eti_rank.settings import EngineSettings, SpeculativeSettings

CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1"}
MODEL_PACKAGE_VARIABLE = "SGLANG_EXTERNAL_MODEL_PACKAGE"
MODEL_PACKAGE = "eti_rank.runtime.architectures"


def device_of(settings: EngineSettings) -> str:
    """`cuda` or `cpu`.

    Raises:
        ConfigurationError: a CUDA device is asked for and there is none.
    """
    present = cuda_device_present()
    if settings.device == "cuda" and not present:
        raise ConfigurationError(
            "engine.device is cuda, and this machine has no CUDA device; use cpu or auto"
        )
    if settings.device == "auto":
        return "cuda" if present else "cpu"
    return settings.device


def threads_of(settings: EngineSettings, device: str) -> int | None:
    """Compute threads of the scheduler process; None on a GPU leaves them to torch."""
    if device == "cuda":
        return settings.threads
    return settings.threads or len(os.sched_getaffinity(0))


def server_arguments(
    settings: EngineSettings, *, checkpoint: str, device: str, max_prompt_tokens: int
) -> dict[str, Any]:
    """Keyword arguments of SGLang's `Engine`.

    Steps arrive as token ids; SGLang loads a tokenizer only to generate text.
    """
    arguments: dict[str, Any] = {
        "model_path": checkpoint,
        "device": device,
        "dtype": dtype_of(settings, device),
        "skip_tokenizer_init": not settings.generation,
        "skip_server_warmup": True,
        "sleep_on_idle": True,
        "trust_remote_code": False,
        "enable_custom_logit_processor": False,
        "disable_radix_cache": not settings.radix_cache,
        "schedule_policy": settings.schedule_policy,
        "max_running_requests": settings.max_running_requests,
        "max_total_tokens": max(settings.max_total_tokens, max_prompt_tokens + 1),
        "chunked_prefill_size": settings.chunked_prefill_tokens,
        "log_level": "error",
    }
    arguments |= speculative_arguments(settings.speculative, device)
    is_sparse = settings.plugin and wire.ATTENTION in settings.hooks
    if device == "cpu":
        arguments |= {
            "attention_backend": "eti_torch" if is_sparse else "torch_native",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
        }
    else:
        arguments |= {
            "attention_backend": "eti_flashinfer" if is_sparse else "flashinfer",
            # A step that measures runs our code in every layer, which a captured graph would leave out.
            "disable_cuda_graph": is_sparse,
            # The hooks' report of a token is complete before the next step begins.
            "disable_overlap_schedule": bool({wire.SAMPLING, wire.ATTENTION} & {*settings.hooks}),
        }
    return arguments


def speculative_arguments(settings: SpeculativeSettings, device: str) -> dict[str, Any]:
    """Arguments of SGLang's speculative decoding; none where it is off.

    Raises:
        ConfigurationError: it is on, and cannot work here.
    """
    if settings.algorithm == "off":
        return {}
    if device == "cpu":
        raise ConfigurationError(
            f"engine.speculative.algorithm is {settings.algorithm}, and SGLang's kernels for it need CUDA; "
            "use off on a CPU"
        )
    drafted = {"speculative_num_draft_tokens": settings.draft_tokens}
    if settings.algorithm == "ngram":
        return drafted | {"speculative_algorithm": "NGRAM"}
    if settings.draft_model is None:
        raise ConfigurationError("engine.speculative.algorithm is draft, and draft_model names no model")
    return drafted | {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": settings.draft_model,
        "speculative_num_steps": settings.draft_tokens - 1,
        "speculative_eagle_topk": 1,
    }


def environment(settings: EngineSettings, device: str) -> dict[str, str]:
    """Variables for SGLang's processes, to be set before it is imported."""
    variables = dict(CPU_ENVIRONMENT) if device == "cpu" else {}
    variables[MODEL_PACKAGE_VARIABLE] = os.environ.get(MODEL_PACKAGE_VARIABLE) or MODEL_PACKAGE
    if (hooks := handshake.wanted_hooks(settings)) is not None:
        variables[wire.PLUGIN_VARIABLE] = wire.PluginConfig(hooks=hooks).encode()
    return variables


def dtype_of(settings: EngineSettings, device: str) -> str:
    """`auto` is float32 on a CPU, where bfloat16 is emulated, and the checkpoint's own on a GPU."""
    return "float32" if settings.dtype == "auto" and device == "cpu" else settings.dtype
