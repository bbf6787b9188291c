"""Stamps every answer that leaves the scheduler with the hooks that ran for it, and adds their reports.

Seam: `Scheduler.get_output_streamer_class` names the class that sends outputs on; ours adds two fields
per request (`build_additional_customized_info`), which arrive in ``meta_info`` even where a request
generates no token.
"""

from typing import Any

from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from eti_rank.engine import wire
from eti_rank.runtime import request_state

TARGET = "sglang.srt.managers.scheduler.Scheduler.get_output_streamer_class"


def install(_config: wire.PluginConfig) -> None:
    """Register the hook; SGLang applies it after all plugins are loaded."""
    HookRegistry.register(TARGET, _stamping, HookType.AFTER)


def _stamping(streamer: type[SchedulerOutputStreamer], *_args: object) -> type[SchedulerOutputStreamer]:
    class StampingStreamer(streamer):  # type: ignore[misc]
        has_additional_customized_info = True

        def build_additional_customized_info(self, reqs: list[Any]) -> dict[str, list[Any]]:
            info: dict[str, list[Any]] = super().build_additional_customized_info(reqs)
            for req in reqs:
                request_state.of(req).ran.add(wire.TELEMETRY)
            info[wire.KEY] = [[request_state.of(req).stamp().encode()] for req in reqs]
            info[wire.REPORTS_KEY] = [wire.encode_reports(_unsent(req)) for req in reqs]
            return info

        def is_request_level_customized_info_key(self, key: str) -> bool:
            ours = key in {wire.KEY, wire.REPORTS_KEY}
            return ours or super().is_request_level_customized_info_key(key)

    return StampingStreamer


def _unsent(req: Any) -> list[wire.TokenReport]:
    """Reports of the tokens that go out now; the other side strings them together."""
    state = request_state.of(req)
    begin, state.sent_reports = state.sent_reports, len(state.reports)
    return state.reports[begin:]
