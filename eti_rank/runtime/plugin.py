"""What SGLang loads in each of its processes through the entry-point group ``sglang.srt.plugins``.

Opt-in: without `wire.PLUGIN_VARIABLE` in the environment it does nothing, so that a plain SGLang in
the same environment stays plain.
"""

import os

from eti_rank.engine import wire
from eti_rank.runtime import attention, forward_rows, sampling, scheduling, telemetry
from eti_rank.runtime.targets import TargetReport, check_targets, require_targets

INSTALLERS = {
    wire.TELEMETRY: telemetry.install,
    wire.SCHEDULING: scheduling.install,
    wire.SAMPLING: sampling.install,
    wire.ATTENTION: attention.install,
}
"""Hook name to the function that registers it with SGLang."""
NEED_ROWS = frozenset({wire.SAMPLING, wire.ATTENTION})
"""Hooks that work on SGLang's forward batch and need our requests beside it."""


def register() -> None:
    """Install the hooks that the environment asks for.

    SGLang logs and swallows what this raises; the engine therefore calls `check` before it starts
    SGLang, and the handshake afterwards sees whether the hooks really run.

    Raises:
        HookError: unreadable configuration, unknown hook, or a target that is not as expected.
    """
    text = os.environ.get(wire.PLUGIN_VARIABLE)
    if text is None:
        return
    config = wire.PluginConfig.decode(text)
    require_targets(config.hooks)
    if NEED_ROWS & set(config.hooks):
        forward_rows.install()
    for hook in config.hooks:
        INSTALLERS[hook](config)


def check(hooks: tuple[str, ...]) -> None:
    """Raise HookError if the targets of these hooks are not as expected."""
    require_targets(hooks)


def reports() -> list[TargetReport]:
    """One row per target, for ``eti-rank doctor``."""
    return check_targets()
