"""The proof that our hooks run inside SGLang: one small step, and the stamp that comes back with it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from eti_rank import __version__
from eti_rank.engine import wire
from eti_rank.engine.protocol import Labels, ScoringStep
from eti_rank.errors import HookError
from eti_rank.settings import EngineSettings

PROBE: Final = ScoringStep(
    step_id="handshake",
    token_ids=(1, 2, 3),
    readout=Labels((1, 2, 3)),
    expected_gain=1.0,  # before all others, so that a busy runtime answers too
    shared_prefix_tokens=2,
)
"""Passes through every hook."""


def wanted_hooks(settings: EngineSettings) -> tuple[str, ...] | None:
    """What must run for `PROBE`: the stamp always, for without it nothing is proved; None without plugin."""
    return (wire.TELEMETRY, *settings.hooks) if settings.plugin else None


def prove(meta_info: Mapping[str, Any], *, hooks: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the hooks that ran for `PROBE`.

    Args:
        meta_info: of SGLang's answer to the probe.
        hooks: as `wanted_hooks` gives them.

    Raises:
        HookError: it is wanted and did not run as it should, or it runs and is not wanted.
    """
    stamp = wire.Stamp.decode(meta_info)
    if hooks is not None:
        wire.check_stamp(stamp, plugin=__version__, hooks=hooks)
    elif stamp is not None:
        raise HookError("engine.plugin is off, and yet the scheduler process runs our hooks")
    return stamp.hooks if stamp else ()
