"""From settings to an engine; each runtime is imported only when it is chosen."""

from eti_rank.engine.protocol import Engine
from eti_rank.settings import EngineSettings


def create_engine(settings: EngineSettings, checkpoint: str, max_prompt_tokens: int) -> Engine:
    """A new engine, not started.

    Args:
        settings: which runtime, and how.
        checkpoint: folder or hub name of the model.
        max_prompt_tokens: longest prompt that the model's profile renders.

    Raises:
        ConfigurationError: the runtime is not installed, or cannot be set up this way.
    """
    if settings.kind == "scripted":
        from eti_rank.engine.scripted import Scripted  # noqa: PLC0415

        return Scripted(settings, checkpoint, max_prompt_tokens)
    if settings.kind == "sglang_remote":
        from eti_rank.engine.sglang_remote import SglangRemote  # noqa: PLC0415

        return SglangRemote(settings, checkpoint, max_prompt_tokens)

    from eti_rank.engine.sglang_local import SglangLocal  # noqa: PLC0415 - SGLang's import takes seconds

    return SglangLocal(settings, checkpoint, max_prompt_tokens)
