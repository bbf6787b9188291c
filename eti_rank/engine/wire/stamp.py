"""What comes back from the scheduler process in ``meta_info``: the stamp, and a report per token."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from eti_rank.engine.wire.configuration import KEY, VERSION
from eti_rank.engine.wire.decoding import TokenReport
from eti_rank.errors import HookError

REPORTS_KEY: Final = f"{KEY}_tokens"
"""In ``meta_info``: one report per generated token so far, for requests with a `DecodingControl`."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the plugin says about a step that it has seen."""

    plugin: str
    """Version of eti-rank inside the scheduler process."""
    hooks: tuple[str, ...]
    """Hooks that ran for this step, sorted."""
    refusal: str | None = None
    """Why the hooks left the step alone, where its parameters do not make sense."""

    def encode(self) -> dict[str, Any]:
        """The value under `KEY` in ``meta_info``."""
        return {"version": VERSION, "plugin": self.plugin, "hooks": self.hooks, "refusal": self.refusal}

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
        return cls(plugin=raw["plugin"], hooks=tuple(raw["hooks"]), refusal=raw["refusal"])


def encode_reports(reports: Sequence[TokenReport]) -> list[dict[str, Any]]:
    """What goes under `REPORTS_KEY`; fields that nobody filled stay away."""
    return [
        {name: value for name, value in asdict(report).items() if value is not None} for report in reports
    ]


def decode_reports(meta_info: Mapping[str, Any]) -> tuple[TokenReport, ...]:
    """One report per generated token, as far as there are any."""
    return tuple(
        TokenReport(**{**raw, **({"bounds_nats": tuple(raw["bounds_nats"])} if "bounds_nats" in raw else {})})
        for raw in meta_info.get(REPORTS_KEY) or ()
    )


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
