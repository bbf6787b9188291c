"""What the scheduler process learns about one request, through ``sampling_params.custom_params``."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from eti_rank.engine.wire.configuration import KEY, VERSION
from eti_rank.engine.wire.decoding import DecodingControl
from eti_rank.errors import DomainError


@dataclass(frozen=True, slots=True)
class StepParams:
    """What the scheduler learns about a step."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    expected_gain: float = 0.0
    arrived_s: float | None = None
    """When its request arrived, by the wall clock of `time.time`; None lets the scheduler's clock decide."""
    shared_prefix_tokens: int = 0
    """Leading tokens that other steps are expected to share."""
    decoding: DecodingControl | None = None
    """For requests that generate; None leaves them to SGLang, unmeasured."""

    def encode(self) -> dict[str, Any]:
        """The value of ``custom_params``."""
        return {KEY: {"version": VERSION, **asdict(self)}}

    @classmethod
    def decode(cls, custom_params: Mapping[str, Any] | None) -> "StepParams | None":
        """Read ``custom_params``; None for a request that is not ours.

        Raises:
            DomainError: it is ours and does not make sense; says why.
        """
        raw = (custom_params or {}).get(KEY)
        if raw is None:
            return None
        if not isinstance(raw, Mapping) or raw.get("version") != VERSION:
            raise DomainError(f"custom_params.{KEY} must be an object of version {VERSION}, got {raw!r:.80}")
        try:
            params = _adapter.validate_python({name: raw[name] for name in raw if name != "version"})
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise DomainError(f"custom_params.{KEY}: {faults}") from None
        if params.expected_gain < 0 or params.shared_prefix_tokens < 0:
            raise DomainError(f"custom_params.{KEY}: expected_gain and shared_prefix_tokens must be >= 0")
        if params.decoding:
            params.decoding.check()
        return params


_adapter = TypeAdapter(StepParams)
