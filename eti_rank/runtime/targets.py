"""Every path inside SGLang that eti-rank touches, with the signature that it expects there.

SGLang logs and swallows an error in a plugin, and hooks a method by its dotted path whatever its
arguments are. So the paths are checked first: a moved or changed one is an error that names it.
"""

import importlib.metadata
import inspect
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from eti_rank.engine import wire
from eti_rank.errors import HookError

SGLANG_VERSION: Final = "0.5.23"
"""The release that the targets were read in."""
LAUNCH: Final = "launch"
"""Not a hook: what the in-process engine overrides or calls."""
SERVER: Final = "server"
"""Not a hook: what a worker calls beyond that, to serve over HTTP."""


@dataclass(frozen=True, slots=True)
class Target:
    """One path and what stands there."""

    hook: str
    path: str
    parameters: tuple[str, ...] | None
    """Names of its parameters in order; None for something that is not called."""


@dataclass(frozen=True, slots=True)
class TargetReport:
    """How a target was found."""

    name: str
    path: str
    ok: bool
    detail: str


_STREAMER = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
_ENGINE = "sglang.srt.entrypoints.engine.Engine"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"
_ATTENTION = "sglang.srt.layers.attention"
_TORCH_BACKEND = f"{_ATTENTION}.torch_native_backend.TorchNativeAttnBackend"
_FLASHINFER = f"{_ATTENTION}.flashinfer_backend"
_ATTEND_ARGUMENTS = ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache")
_POOL_ARGUMENTS = (
    "self",
    "query",
    "output",
    "k_cache",
    "v_cache",
    "req_to_token",
    "req_pool_indices",
    "seq_lens",
)
_SDPA_OPTIONS = ("encoder_lens", "scaling", "enable_gqa", "causal", "is_cross_attn", "sliding_window_size")
_LAUNCH_ARGUMENTS = ("server_args", "port_args")
_LAUNCH_FUNCTIONS = (
    "init_tokenizer_manager_func",
    "run_scheduler_process_func",
    "run_detokenizer_process_func",
)

TARGETS: Final = (
    Target(wire.TELEMETRY, "sglang.srt.managers.scheduler.Scheduler.get_output_streamer_class", ("self",)),
    Target(wire.TELEMETRY, f"{_STREAMER}.has_additional_customized_info", None),
    Target(wire.TELEMETRY, f"{_STREAMER}.build_additional_customized_info", ("self", "reqs")),
    Target(wire.TELEMETRY, f"{_STREAMER}.is_request_level_customized_info_key", ("self", "key")),
    Target(
        wire.SCHEDULING,
        "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority",
        ("self", "waiting_queue", "running_batch", "processed_tokens"),
    ),
    Target(wire.SCHEDULING, "sglang.srt.managers.scheduler.Scheduler.get_prefill_adder_class", ("self",)),
    Target(
        wire.SCHEDULING,
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
        ("self", "req", "has_chunked_req", "truncation_align_size"),
    ),
    Target(wire.SCHEDULING, "sglang.srt.managers.schedule_policy.AddReqResult.CONTINUE", None),
    Target(
        wire.SCHEDULING,
        "sglang.srt.managers.schedule_batch.ScheduleBatch._get_decode_retraction_order",
        ("reqs",),
    ),
    Target(
        wire.SAMPLING,
        "sglang.srt.model_executor.model_runner.ModelRunner.sample",
        ("self", "logits_output", "forward_batch"),
    ),
    Target(
        wire.SAMPLING,
        "sglang.srt.layers.sampler.Sampler.forward",
        (
            "self",
            "logits_output",
            "sampling_info",
            "return_logprob",
            "top_logprobs_nums",
            "token_ids_logprobs",
            "positions",
            "logprob_logits",
        ),
    ),
    *(
        Target(
            hook,
            f"{_FORWARD_BATCH}.init_new",
            (
                "batch",
                "model_runner",
                "capture_hidden_mode",
                "return_hidden_states_before_norm",
                "extend_position_info",
                "spec_mrope_positions",
                "kv_loc_plan",
                "write_cols",
            ),
        )
        for hook in (wire.SAMPLING, wire.ATTENTION)
    ),
    *(
        Target(
            hook,
            "sglang.srt.model_executor.runner.eager_runner.EagerRunner.load_batch",
            ("self", "forward_batch", "pp_proxy_tensors", "kwargs"),
        )
        for hook in (wire.SAMPLING, wire.ATTENTION)
    ),
    Target(
        wire.ATTENTION,
        "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len",
        ("self", "input_len"),
    ),
    Target(wire.ATTENTION, "sglang.srt.arg_groups.choices.add_attention_backend_choices", None),
    Target(wire.ATTENTION, "sglang.srt.arg_groups.choices.ATTENTION_BACKEND_CHOICES", None),
    Target(wire.ATTENTION, f"{_ATTENTION}.attention_registry.register_attention_backend", ("name",)),
    Target(wire.ATTENTION, f"{_TORCH_BACKEND}.__init__", ("self", "model_runner")),
    Target(wire.ATTENTION, f"{_TORCH_BACKEND}.init_forward_metadata", ("self", "forward_batch")),
    Target(wire.ATTENTION, f"{_TORCH_BACKEND}.forward_extend", _ATTEND_ARGUMENTS),
    Target(wire.ATTENTION, f"{_TORCH_BACKEND}.forward_decode", _ATTEND_ARGUMENTS),
    Target(
        wire.ATTENTION,
        f"{_TORCH_BACKEND}._run_sdpa_forward_extend",
        (*_POOL_ARGUMENTS, "extend_prefix_lens", "extend_seq_lens", *_SDPA_OPTIONS),
    ),
    Target(wire.ATTENTION, f"{_TORCH_BACKEND}._run_sdpa_forward_decode", (*_POOL_ARGUMENTS, *_SDPA_OPTIONS)),
    Target(
        wire.ATTENTION,
        f"{_FLASHINFER}.FlashInferAttnBackend.init_forward_metadata",
        ("self", "forward_batch"),
    ),
    Target(wire.ATTENTION, f"{_FLASHINFER}.FlashInferAttnBackend.forward_extend", _ATTEND_ARGUMENTS),
    Target(wire.ATTENTION, f"{_FLASHINFER}.FlashInferAttnBackend.forward_decode", _ATTEND_ARGUMENTS),
    Target(wire.ATTENTION, f"{_FLASHINFER}.DecodeMetadata", ("decode_wrappers", "swa_out_cache_loc")),
    Target(
        wire.ATTENTION,
        f"{_FLASHINFER}.FlashInferIndicesUpdaterDecode.call_begin_forward",
        (
            "self",
            "wrapper",
            "paged_kernel_lens",
            "paged_kernel_lens_sum",
            "kv_indptr",
            "kv_start_idx",
            "spec_info",
            "seq_lens_cpu",
            "use_sliding_window_kv_pool",
            "fixed_split_size",
            "disable_split_kv",
            "plan",
            "req_pool_indices",
        ),
    ),
    Target(
        wire.ATTENTION,
        "sglang.srt.mem_cache.kv_index_translator.KVIndexTranslator.pack_read_stream",
        (
            "self",
            "plan",
            "req_pool_indices",
            "seq_lens",
            "indptr",
            "out",
            "kv_start_idx",
            "kind",
            "token_mapping",
            "num_token_blocks",
            "kv_lens_sum",
        ),
    ),
    Target(
        wire.ATTENTION,
        "sglang.srt.mem_cache.common.release_kv_cache",
        ("req", "tree_cache", "checkpoint"),
    ),
    Target(wire.ATTENTION, "sglang.srt.mem_cache.common.checkpoint_kv_cache", ("req", "tree_cache")),
    Target(
        LAUNCH,
        f"{_ENGINE}._launch_scheduler_processes",
        (*_LAUNCH_ARGUMENTS, "run_scheduler_process_func", "placement_group"),
    ),
    Target(
        LAUNCH,
        f"{_ENGINE}._launch_detokenizer_subprocesses",
        (*_LAUNCH_ARGUMENTS, "run_detokenizer_process_func"),
    ),
    Target(LAUNCH, "sglang.srt.managers.detokenizer_manager.run_detokenizer_process", None),
    Target(
        LAUNCH,
        "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin.flush_cache",
        ("self", "timeout_s"),
    ),
    Target(LAUNCH, f"{_TOKENIZER}.abort_request", ("self", "rid", "abort_all")),
    Target(LAUNCH, "sglang.srt.utils.watchdog.SubprocessWatchdog.stop", ("self",)),
    Target(
        SERVER,
        f"{_ENGINE}._launch_subprocesses",
        ("server_args", *_LAUNCH_FUNCTIONS, "port_args", "placement_group"),
    ),
    Target(
        SERVER,
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        (
            "server_args",
            "tokenizer_manager",
            "template_manager",
            "port_args",
            "scheduler_infos",
            "subprocess_watchdog",
            "execute_warmup_func",
            "launch_callback",
        ),
    ),
    Target(SERVER, f"{_TOKENIZER}.gracefully_exit", None),
    Target(SERVER, "sglang.srt.managers.tokenizer_manager.ServerStatus.Up", None),
)


def check_target(target: Target) -> TargetReport:
    """Look one target up; imports the module it is in."""

    def report(ok: bool, detail: str) -> TargetReport:
        return TargetReport(name=target.hook, path=target.path, ok=ok, detail=detail)

    try:
        found = pkgutil.resolve_name(target.path)
    except (ImportError, AttributeError) as error:
        return report(False, f"not there: {error}")
    if target.parameters is None:
        return report(True, "found")
    if not callable(found):
        return report(False, "is not a function any more")
    parameters = tuple(inspect.signature(found).parameters)
    if parameters != target.parameters:
        return report(False, f"takes ({', '.join(parameters)}), want ({', '.join(target.parameters)})")
    return report(True, f"({', '.join(parameters)})")


def check_targets(targets: Sequence[Target] = TARGETS) -> list[TargetReport]:
    """Look all targets up, in order."""
    return [check_target(target) for target in targets]


def require_targets(hooks: Sequence[str], targets: Sequence[Target] = TARGETS) -> None:
    """Refuse to go on unless each target of these hooks is as expected.

    Raises:
        HookError: names each target that is not, and SGLang's version.
    """
    unknown = sorted(set(hooks) - {target.hook for target in targets})
    if unknown:
        raise HookError(f"unknown hooks {', '.join(unknown)}; there are {', '.join(sorted(names(targets)))}")
    reports = check_targets([target for target in targets if target.hook in hooks])
    if bad := [f"{r.path} ({r.name}): {r.detail}" for r in reports if not r.ok]:
        version = importlib.metadata.version("sglang")
        raise HookError(
            f"SGLang {version} is not as eti-rank expects (made for {SGLANG_VERSION}): " + "; ".join(bad)
        )


def names(targets: Sequence[Target] = TARGETS) -> set[str]:
    """Names of the hooks that have targets."""
    return {target.hook for target in targets}
