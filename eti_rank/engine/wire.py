"""The only contract between an engine and our plugin inside SGLang's processes.

Three things cross: the plugin's configuration (environment, once per process), parameters of a step
(``sampling_params.custom_params``), and the stamp that comes back (``meta_info``). All are JSON.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from eti_rank.errors import HookError

PLUGIN_VARIABLE: Final = "ETI_RANK_PLUGIN"
"""Without this variable the plugin does nothing in a process that loads it."""
PLUGIN_MODULE: Final = "eti_rank.runtime.plugin"
"""Reached by name, as SGLang does through its entry-point group; nothing above imports `runtime`."""
KEY: Final = "eti_rank"
"""Our key in ``custom_params`` and in ``meta_info``."""
VERSION: Final = 1
"""Rises when either side would misunderstand the other."""
TELEMETRY: Final = "telemetry"
"""Hook: stamps every answer with the hooks that ran for it."""
SCHEDULING: Final = "scheduling"
"""Hook: orders the waiting queue by expected gain per cost, and holds siblings of a cold prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingConfig:
    """Constants of `control.priority`, which the scheduling hook works with."""

    per_uncached_token: float = 1.0
    per_kv_token: float = 0.01
    per_decode_token: float = 1.0
    ceiling: float = 1.0
    ageing_per_second: float = 0.01


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """Which hooks to install in a process, and with which constants."""

    hooks: tuple[str, ...] = (TELEMETRY, SCHEDULING)
    scheduling: SchedulingConfig = SchedulingConfig()

    def encode(self) -> str:
        """The value of `PLUGIN_VARIABLE`."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def decode(cls, text: str) -> "PluginConfig":
        """Read a value of `PLUGIN_VARIABLE`.

        Raises:
            HookError: not JSON of this version, or with unknown keys.
        """
        try:
            raw = json.loads(text)
            version, hooks = raw.pop("version"), tuple(raw.pop("hooks"))
            scheduling = SchedulingConfig(**raw.pop("scheduling", {}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HookError(f"{PLUGIN_VARIABLE} is not a plugin configuration: {text!r} ({error})") from None
        if version != VERSION or raw:
            raise HookError(
                f"{PLUGIN_VARIABLE}: version {version}, unknown keys {sorted(raw)}; want {VERSION}"
            )
        return cls(hooks, scheduling)


@dataclass(frozen=True, slots=True)
class StepParams:
    """What the scheduler learns about a step."""

    expected_gain: float = 0.0
    arrived_s: float | None = None
    """When its request arrived, by the wall clock of `time.time`; None lets the scheduler's clock decide."""
    shared_prefix_tokens: int = 0
    """Leading tokens that other steps are expected to share."""

    def encode(self) -> dict[str, Any]:
        """The value of ``custom_params``."""
        return {KEY: {"version": VERSION, **asdict(self)}}

    @classmethod
    def decode(cls, custom_params: Mapping[str, Any] | None) -> "StepParams | None":
        """Read ``custom_params``; None for a request that is not ours."""
        raw = (custom_params or {}).get(KEY)
        if not isinstance(raw, Mapping) or raw.get("version") != VERSION:
            return None
        return cls(**{name: value for name, value in raw.items() if name != "version"})


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the plugin says about a step that it has seen."""

    plugin: str
    """Version of eti-rank inside the scheduler process."""
    hooks: tuple[str, ...]
    """Hooks that ran for this step, sorted."""

    def encode(self) -> dict[str, Any]:
        """The value under `KEY` in ``meta_info``."""
        return {"version": VERSION, "plugin": self.plugin, "hooks": self.hooks}

    @classmethod
    def decode(cls, meta_info: Mapping[str, Any]) -> "Stamp | None":
        """The last stamp in an answer's ``meta_info``; None where the plugin did not run.

        Raises:
            HookError: there is a stamp, of another version.
        """
        stamps: Sequence[Mapping[str, Any]] = meta_info.get(KEY) or ()
        if not stamps:
            return None
        raw = stamps[-1]
        if raw.get("version") != VERSION:
            raise HookError(f"the scheduler process stamps version {raw.get('version')}, want {VERSION}")
        return cls(plugin=raw["plugin"], hooks=tuple(raw["hooks"]))


def check_stamp(stamp: Stamp | None, *, plugin: str, hooks: Sequence[str]) -> None:
    """The handshake: the probe's stamp must come from this version, with all these hooks run.

    Raises:
        HookError: it does not; says what is missing.
    """
    if stamp is None:
        raise HookError(
            "the probe came back without a stamp: SGLang did not load eti-rank's plugin "
            "(is the package installed in its environment, and not excluded by SGLANG_PLUGINS?)"
        )
    if stamp.plugin != plugin:
        raise HookError(f"the scheduler process runs eti-rank {stamp.plugin}, this process {plugin}")
    if missing := sorted(set(hooks) - set(stamp.hooks)):
        raise HookError(f"hooks that did not run for the probe: {', '.join(missing)}; see `eti-rank doctor`")
