"""Settings: a TOML file, then environment variables ``ETI_RANK_*``; an unknown name is an error.

Nested settings use two underscores: ``ETI_RANK_ENGINE__DEVICE=cpu`` is ``[engine] device = "cpu"``.
"""

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.exceptions import SettingsError

from eti_rank.errors import ConfigurationError

PREFIX = "ETI_RANK_"
STANDALONE = frozenset({"CONFIG", "CACHE", "DATA", "URL"})
"""Variables with our prefix that are not settings of the service."""


Hook = Literal["scheduling", "sampling", "attention"]
"""Parts of the plugin that can be on or off, each on its own."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(_Section):
    """Which model reads the documents."""

    profile: str = "smollm2-135m-instruct"
    """Name of a shipped profile, or path of a profile's TOML file."""
    path: str | None = None
    """Checkpoint folder or hub name that replaces the profile's own source."""
    check_golden: bool = True
    """Refuse to serve a model whose golden scores do not match its profile."""


class SpeculativeSettings(_Section):
    """SGLang's speculative decoding, for requests that generate."""

    algorithm: Literal["off", "ngram", "draft"] = "off"
    """`ngram` drafts from what was generated before, `draft` from a smaller model."""
    draft_model: str | None = None
    """Checkpoint folder or hub name of the model that drafts."""
    draft_tokens: int = Field(default=4, ge=2)
    """Tokens that are drafted and then verified at once."""


class RemoteSettings(_Section):
    """Workers over HTTP, for the engine `sglang_remote`."""

    urls: tuple[str, ...] = ()
    """Base URL of each worker, or of one router before them."""
    api_key: SecretStr | None = None
    """What a worker asks for; `eti-rank worker` takes it from here too."""
    require_all: bool = True
    """Start only if every worker is fit; otherwise one is enough, and the others join when they are."""
    connect_timeout_s: float = Field(default=2.0, gt=0)
    step_timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for one worker's answer to one step; its waiting queue counts."""
    deadline_s: float = Field(default=120.0, gt=0)
    """Longest life of one step, over all its attempts."""
    max_attempts: int = Field(default=4, ge=1)
    backoff_s: float = Field(default=0.05, ge=0)
    """Wait before the second attempt; doubles up to `max_backoff_s`, less up to half by chance."""
    max_backoff_s: float = Field(default=2.0, ge=0)
    health_interval_s: float = Field(default=2.0, gt=0)
    health_timeout_s: float = Field(default=10.0, gt=0)
    """A worker that neither passes its check nor answers a step within this time is out."""
    down_after_s: float = Field(default=2.0, ge=0)
    """How long all workers may be out before the engine is down and its open steps fail."""
    load_bound: float = Field(default=1.25, gt=1)
    """Share of the average load up to which a worker is preferred for a prefix that it may have cached."""
    max_connections: int = Field(default=256, ge=1)
    """To one worker."""
    keepalive_s: float = Field(default=3.0, ge=0)
    """How long an idle connection is kept; SGLang closes its side after 5 s."""


class EngineSettings(_Section):
    """The runtime below."""

    kind: Literal["sglang_local", "sglang_remote", "scripted"] = "sglang_local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is float32 on a CPU and the checkpoint's own type on a GPU."""
    plugin: bool = True
    """Load eti-rank's hooks inside SGLang and refuse to serve without them."""
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    """SGLang's own order of the queue, which the scheduling hook replaces where it is on."""
    hooks: tuple[Hook, ...] = ("scheduling", "sampling")
    """Which of the hooks the plugin installs, each on its own."""
    generation: bool = False
    """Load the model's tokenizer in SGLang, so that it can generate; costs seconds of the start."""
    speculative: SpeculativeSettings = SpeculativeSettings()
    radix_cache: bool = True
    max_running_requests: int = Field(default=16, ge=1)
    max_total_tokens: int = Field(default=16384, ge=256)
    """Size of the KV cache."""
    chunked_prefill_tokens: int = Field(default=2048, ge=64)
    """Tokens of one prefill batch."""
    threads: int | None = Field(default=None, ge=1)
    """Compute threads on a CPU; None takes all cores."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    restart_backoff_s: float = Field(default=1.0, ge=0)
    """Wait before the first restart after a crash; doubles up to 30 s while starts fail."""
    remote: RemoteSettings = RemoteSettings()


class LimitSettings(_Section):
    """What one request may ask for; all visible in `/info`."""

    max_documents: int = Field(default=2000, ge=1)
    max_document_bytes: int = Field(default=2 << 20, ge=1)
    """UTF-8 bytes of one document; a longer one fails, the others are ranked."""
    max_body_bytes: int = Field(default=32 << 20, ge=1)
    max_in_flight: int = Field(default=64, ge=1)
    """Steps that the service keeps open in the engine."""


class ServiceSettings(_Section):
    """The HTTP side."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    shutdown_grace_s: int = Field(default=20, ge=0)
    """How long open requests may take to end after SIGTERM."""


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    limits: LimitSettings = LimitSettings()
    service: ServiceSettings = ServiceSettings()


def load_settings(path: Path | None = None) -> Settings:
    """Read the TOML file at `path` (or at ``ETI_RANK_CONFIG``), then apply the environment.

    Raises:
        ConfigurationError: the file cannot be read, or a key or value is wrong.
    """
    named = os.environ.get("ETI_RANK_CONFIG")
    chosen = path or (Path(named) if named else None)
    if chosen and not chosen.is_file():
        raise ConfigurationError(f"settings file {chosen} does not exist")
    _refuse_unknown_variables()

    try:
        return _with_file(chosen)()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, SettingsError) as error:
        raise ConfigurationError(f"settings file {chosen}: {error}") from None
    except ValidationError as error:
        origin = f"{chosen} and {PREFIX}*" if chosen else f"{PREFIX}*"
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigurationError(f"settings from {origin}: {faults}") from None


def _with_file(path: Path | None) -> type[Settings]:
    class FileSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return env_settings, TomlConfigSettingsSource(settings_cls, path)

    return FileSettings


def cache_folder() -> Path:
    """Where converted models are kept: ``ETI_RANK_CACHE``, else the user's cache folder."""
    if own := os.environ.get("ETI_RANK_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "eti-rank"


def _refuse_unknown_variables() -> None:
    """pydantic-settings passes over variables that match no field; a typing error must not."""
    for variable in os.environ:
        name = variable.removeprefix(PREFIX)
        if name == variable or name in STANDALONE:
            continue
        *sections, key = name.lower().split("__")
        fields = _fields(sections) if sections else {}
        if key not in fields:
            right = ", ".join(fields) or (
                f"{PREFIX}<SECTION>__<KEY> with a section of {', '.join(Settings.model_fields)}"
            )
            raise ConfigurationError(f"environment variable {variable} is not a setting; there is {right}")


def _fields(sections: list[str]) -> dict[str, Any]:
    """Fields of a section by its path; none if there is no such section."""
    found: Any = Settings
    for name in sections:
        field = found.model_fields.get(name)
        found = field.annotation if field else None
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return {}
    return dict(found.model_fields)
