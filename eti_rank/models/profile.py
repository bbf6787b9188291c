"""Profiles: what has to be known of a model to rerank with it, as TOML.

``configs/models/`` holds the shipped ones; a path names any other. Each key is explained here, at its field.
"""

import hashlib
import json
import re
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eti_rank.errors import ProfileError
from eti_rank.types import ScoreType

FIELDS: Final = ("query", "document", "instruction")
"""What a template may ask for, in braces."""
_IN_BRACES: Final = re.compile(r"\{(\w+)\}")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Template(_Part):
    """A prompt as parts, each tokenised on its own, one after the other.

    A part without a placeholder is the template's own: special tokens in it are meant. A part with
    placeholders is text, the user's and ours: nothing in it is ever a special token.
    """

    parts: tuple[str, ...] = Field(min_length=1)
    default_instruction: str | None = None
    """Used where a request brings none."""
    instruction_prefix: str | None = None
    """Put before the query's part if a request brings an instruction, with ``{instruction}`` in it."""

    @property
    def fingerprint(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of everything that forms a prompt."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:12]

    @model_validator(mode="after")
    def _check_placeholders(self) -> "Template":
        used = [name for part in self.parts for name in _IN_BRACES.findall(part)]
        if unknown := sorted(set(used).difference(FIELDS)):
            raise ValueError(f"{{{unknown[0]}}} is no placeholder; there are {', '.join(FIELDS)}")
        for name in ("query", "document"):
            if used.count(name) != 1:
                raise ValueError(f"the parts must hold {{{name}}} exactly once")
        if "instruction" in used and self.default_instruction is None:
            raise ValueError("a template with {instruction} needs a default_instruction")
        if self.instruction_prefix and _IN_BRACES.findall(self.instruction_prefix) != ["instruction"]:
            raise ValueError("instruction_prefix must hold {instruction} and no other placeholder")
        return self


class Labels(_Part):
    """Tokens whose probability at the last position is the judgement; each is one token.

    Several spellings of one label add their probabilities.
    """

    positive: tuple[str, ...] = Field(min_length=1)
    negative: tuple[str, ...] = Field(min_length=1)


class Limits(_Part):
    """In tokens."""

    max_prompt_tokens: int = Field(ge=16)
    max_query_tokens: int = Field(ge=1)

    @model_validator(mode="after")
    def _check_order(self) -> "Limits":
        if self.max_query_tokens >= self.max_prompt_tokens:
            raise ValueError("max_query_tokens must be below max_prompt_tokens")
        return self


class Platt(_Part):
    """P(relevant) = 1 / (1 + exp(-(slope * raw + intercept))), fitted on judged pairs.

    J. Platt, Probabilistic Outputs for Support Vector Machines, 1999.
    """

    method: Literal["platt"]
    slope: float
    intercept: float


class GoldenScore(_Part):
    """A raw score that this model must give."""

    query: str
    document: str
    raw_score: float


class Tolerance(_Part):
    """How far a score may be from its golden value, by the type that the engine computes in.

    One number instead stands for all three.
    """

    float32: float = Field(gt=0)
    float16: float = Field(gt=0)
    bfloat16: float = Field(gt=0)

    def of(self, dtype: str) -> float:
        """For one type; the widest for a type that is none of these, such as an eight-bit one."""
        return float(getattr(self, dtype, max(self.float32, self.float16, self.bfloat16)))

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, given: object) -> object:
        return dict.fromkeys(cls.model_fields, given) if isinstance(given, (int, float)) else given


class Golden(_Part):
    """Known scores; a model that does not reproduce them is not served."""

    tolerance_nats: Tolerance
    scores: tuple[GoldenScore, ...] = ()


class EmbeddedSource(_Part):
    """A model that comes inside a Python package."""

    kind: Literal["embedded"]
    model: str


class CheckpointSource(_Part):
    """A folder, or a name on a model hub."""

    kind: Literal["checkpoint"]
    path: str


class Profile(_Part):
    """Everything about one model."""

    name: str
    source: Annotated[EmbeddedSource | CheckpointSource, Field(discriminator="kind")]
    architecture: str
    """Class name in the checkpoint's ``config.json``."""
    scorer: ScoreType
    template: Template
    limits: Limits
    golden: Golden
    labels: Labels | None = None
    calibration: Platt | None = None
    noise_floor_nats: float = Field(default=0.0, ge=0)
    """Added knowledge of how far raw scores of the same pair may differ; the engine has its own."""

    @property
    def template_id(self) -> str:
        """Name and fingerprint."""
        return f"{self.name}@{self.template.fingerprint}"

    @model_validator(mode="after")
    def _check_scorer(self) -> "Profile":
        if (self.labels is not None) != (self.scorer is ScoreType.LABEL):
            raise ValueError("scorer = 'label' needs [labels], and only it has them")
        end = self.template.parts[-1]
        if self.scorer is ScoreType.LIKELIHOOD and not (end.endswith("{query}") and "{document}" not in end):
            raise ValueError(
                "scorer = 'likelihood' scores the prompt's end: the last part must end with {query} "
                "and must not hold {document}"
            )
        return self


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with eti-rank."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in _shipped().iterdir() if entry.name.endswith(".toml")
    )


def load_profile(name_or_path: str) -> Profile:
    """Read a shipped profile by name, or any by its path.

    Raises:
        ProfileError: there is none, or it is not a valid profile; says which key is wrong.
    """
    if name_or_path in shipped_profiles():
        text = _shipped().joinpath(f"{name_or_path}.toml").read_text(encoding="utf-8")
    else:
        text = _read(Path(name_or_path))
    try:
        return Profile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"profile {name_or_path}: {error}") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'profile'}: {e['msg']}" for e in error.errors())
        raise ProfileError(f"profile {name_or_path}: {faults}") from None


def _shipped() -> Traversable:
    return resources.files("eti_rank").joinpath("configs", "models")


def _read(path: Path) -> str:
    if path.suffix != ".toml":
        shipped = ", ".join(shipped_profiles())
        raise ProfileError(f"no profile is called {path}; there are {shipped}, or a path ending in .toml")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"profile {path}: {error}") from None
