"""`eti-rank worker`: one SGLang runtime with our hooks, over HTTP, for engines of kind `sglang_remote`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eti_rank.cli.exit_codes import exit_code
from eti_rank.cli.terminal import complain, leave, quieten_libraries

if TYPE_CHECKING:
    from eti_rank.errors import EtiRankError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run_worker(
    *,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 30000,
) -> None:
    """Run one SGLang server with eti-rank's hooks, until SIGTERM or Ctrl-C.

    [model] and [engine] of the settings say what runs; if engine.remote.api_key is set, it is asked for.
    The server's /health turns 200 when the hooks have proved that they run. Exits with 3 if SGLang dies.
    """
    from eti_rank.engine.sglang_local.server import Listening, serve
    from eti_rank.models.reranker_model import prepare_model
    from eti_rank.service.logs import configure_logs
    from eti_rank.settings import load_settings

    quieten_libraries()
    settings = load_settings(config)
    configure_logs(settings.service.log_level)
    key = settings.engine.remote.api_key
    if key is None and host not in LOOPBACK:
        complain(f"listening on {host} without engine.remote.api_key: whoever reaches it controls it")
    model = prepare_model(settings.model)
    serve(
        settings.engine,
        checkpoint=model.checkpoint,
        max_prompt_tokens=model.max_prompt_tokens,
        listening=Listening(host=host, port=port, api_key=key.get_secret_value() if key else None),
        on_ready=lambda url: complain(f"worker ready on {url}"),
        on_failure=_end,
    )


def _end(error: "EtiRankError") -> None:
    complain(str(error))
    leave(exit_code(error))
