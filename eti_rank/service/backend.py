"""Puts model, engine and ranking together from the settings, for the service and the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eti_rank.engine.factory import create_engine
from eti_rank.engine.protocol import Engine
from eti_rank.engine.supervisor import SupervisedEngine
from eti_rank.ranking.golden import check_golden_scores
from eti_rank.ranking.reranker import Reranker
from eti_rank.settings import Settings

if TYPE_CHECKING:
    from eti_rank.models.reranker_model import RerankModel


@dataclass(frozen=True, slots=True)
class Backend:
    """What answers requests; the engine is not started."""

    model: "RerankModel"
    engine: SupervisedEngine
    reranker: Reranker


def build_backend(settings: Settings) -> Backend:
    """Prepare the model, which may take a download, and put everything else around it.

    Raises:
        ConfigurationError: the profile is wrong, or the model cannot be obtained.
    """
    from eti_rank.models.reranker_model import prepare_model  # noqa: PLC0415 - brings in tokenizers

    model = prepare_model(settings.model)
    return assemble(
        settings,
        model,
        lambda: create_engine(settings.engine, model.checkpoint, model.max_prompt_tokens),
    )


def assemble(settings: Settings, model: "RerankModel", factory: Callable[[], Engine]) -> Backend:
    """A backend around a prepared model and a way to make engines.

    Each engine that the supervisor starts has to reproduce the golden scores before it is ready.
    """

    async def verify(engine: Engine) -> None:
        if settings.model.check_golden:
            await check_golden_scores(engine, model)

    engine = SupervisedEngine(factory, backoff_s=settings.engine.restart_backoff_s, verify=verify)
    reranker = Reranker(
        engine,
        model,
        max_in_flight=settings.limits.max_in_flight,
        max_document_bytes=settings.limits.max_document_bytes,
        prefix_cache=settings.engine.radix_cache,
    )
    return Backend(model, engine, reranker)
