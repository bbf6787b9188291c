"""What an engine tells the plugin when a process starts: which hooks, and with which constants."""

import json
from dataclasses import asdict, dataclass
from typing import Final

from eti_rank.errors import HookError

PLUGIN_VARIABLE: Final = "ETI_RANK_PLUGIN"
"""Without this variable the plugin does nothing in a process that loads it."""
PLUGIN_MODULE: Final = "eti_rank.runtime.plugin"
"""Reached by name, as SGLang does through its entry-point group; nothing above imports `runtime`."""
KEY: Final = "eti_rank"
"""Our key in ``custom_params`` and in ``meta_info``."""
VERSION: Final = 2
"""Rises when either side would misunderstand the other."""
TELEMETRY: Final = "telemetry"
"""Hook: stamps every answer with the hooks that ran for it."""
SCHEDULING: Final = "scheduling"
"""Hook: orders the waiting queue by expected gain per cost, and holds siblings of a cold prefix."""
SAMPLING: Final = "sampling"
"""Hook: measures the entropy of each decoding step, and sets the temperature by a law where asked."""
ATTENTION: Final = "attention"
"""Hook: block-sparse attention for the requests that ask for it."""


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

    hooks: tuple[str, ...]
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
