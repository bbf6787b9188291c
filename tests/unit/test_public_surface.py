"""What others build on. A name that goes or comes is a decision, taken here and in the change log."""

import importlib
import types

import pytest

SURFACE = {
    "eti_rank.types": """
        Budget Compute Document Policy RankedDocument Ranking RerankRequest ScoreType Status StoppedBy
        Truncation Uncertainty Utility
    """,
    "eti_rank.errors": """
        ConfigurationError DomainError EngineError EngineUnavailable EtiRankError HookError InputTooLarge
        InvalidField InvalidInput MalformedInput ModelUnavailable Overloaded ProfileError ServiceError
        UnsupportedRequest
    """,
    "eti_rank.settings": """
        EngineSettings LimitSettings ModelSettings PREFIX RemoteSettings STANDALONE ServiceSettings Settings
        SpeculativeSettings cache_folder load_settings
    """,
    "eti_rank.engine.protocol": """
        Capability Engine EngineDescription EngineState Evidence Finish Generated GenerationStep Labels
        Likelihood Sampling ScoringStep generate_whole score_all
    """,
    "eti_rank.engine.factory": "create_engine",
    "eti_rank.engine.scripted": """
        PrefixCache Scripted VOCABULARY_SIZE hashed_logprobs hashed_report hashed_token
    """,
    "eti_rank.engine.supervisor": "MAX_BACKOFF_S SupervisedEngine",
    "eti_rank.ranking.reranker": "RENDER_CHUNK_CHARACTERS Reranker",
    "eti_rank.service.app": "create_app",
    "eti_rank.service.backend": "Backend assemble build_backend",
    "eti_rank.service.server": "serve",
}


@pytest.mark.parametrize("name", SURFACE)
def test_a_module_offers_what_is_listed(name: str) -> None:
    module = importlib.import_module(name)
    own = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", name) == name
        and key != "log"
    }
    assert own - _imported_constants(module) == set(SURFACE[name].split())


def _imported_constants(module: types.ModuleType) -> set[str]:
    """Typing constructs, which have no home of their own."""
    return {key for key in vars(module) if key in {"Final", "Literal", "TYPE_CHECKING", "Any", "Annotated"}}
