"""The body of /info: what is served, with which limits, and how the engine is doing."""

from pathlib import PurePath
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel

from eti_rank.engine.protocol import Capability, EngineDescription, EngineState
from eti_rank.engine.supervisor import SupervisedEngine
from eti_rank.errors import EngineUnavailable
from eti_rank.settings import LimitSettings
from eti_rank.types import Policy, ScoreType, Utility

if TYPE_CHECKING:
    from eti_rank.models.reranker_model import RerankModel


class EngineDescriptionOut(BaseModel):
    """What was started last."""

    kind: str
    model: str
    """Hub name, or name of the checkpoint's folder."""
    device: str
    dtype: str
    capabilities: list[Capability]
    max_prompt_tokens: int
    max_running_requests: int
    noise_floor_nats: float
    startup_s: dict[str, float]
    hooks: list[str]

    @classmethod
    def of(cls, description: EngineDescription) -> Self:
        """From an engine's own words, without the folders of this machine."""
        folder = PurePath(description.model)
        return cls(
            kind=description.kind,
            model=folder.name if folder.is_absolute() else description.model,
            device=description.device,
            dtype=description.dtype,
            capabilities=sorted(description.capabilities),
            max_prompt_tokens=description.max_prompt_tokens,
            max_running_requests=description.max_running_requests,
            noise_floor_nats=description.noise_floor_nats,
            startup_s=description.startup_s,
            hooks=list(description.hooks),
        )


class EngineOut(BaseModel):
    """How the engine is doing."""

    state: EngineState
    reason: str
    restarts: int
    last_error: str | None
    """Why it last failed; kept after it has recovered."""
    description: EngineDescriptionOut | None
    """None until the engine has been ready once."""

    @classmethod
    def of(cls, engine: SupervisedEngine) -> Self:
        """As it is now."""
        try:
            description = EngineDescriptionOut.of(engine.description)
        except EngineUnavailable:
            description = None
        return cls(
            state=engine.state,
            reason=engine.reason,
            restarts=engine.restarts,
            last_error=None if engine.last_error is None else str(engine.last_error),
            description=description,
        )


class InfoOut(BaseModel):
    """Answer of GET /info."""

    version: str
    profile: str
    template: str
    score_type: ScoreType
    calibrated: bool
    policies: list[Policy]
    utilities: list[Utility]
    max_query_tokens: int
    limits: LimitSettings
    engine: EngineOut

    @classmethod
    def of(
        cls, model: "RerankModel", engine: SupervisedEngine, limits: LimitSettings, *, version: str
    ) -> Self:
        """As it is now."""
        return cls(
            version=version,
            profile=model.profile.name,
            template=model.template_id,
            score_type=model.score_type,
            calibrated=model.calibrated,
            policies=list(Policy),
            utilities=list(Utility),
            max_query_tokens=model.profile.limits.max_query_tokens,
            limits=limits,
            engine=EngineOut.of(engine),
        )
