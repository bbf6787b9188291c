"""`eti-rank serve`: answer over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from eti_rank.cli.terminal import quieten_libraries


def serve(
    *,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; replaces the setting.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = None,
) -> None:
    """Serve POST /rerank until SIGTERM or Ctrl-C.

    /healthz answers at once, /readyz when the engine and the model have proved themselves.
    """
    from eti_rank.service.backend import build_backend
    from eti_rank.service.logs import configure_logs
    from eti_rank.service.server import serve as serve_until_stopped
    from eti_rank.settings import load_settings

    quieten_libraries()
    settings = load_settings(config)
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    service = settings.service.model_copy(update=given)
    settings = settings.model_copy(update={"service": service})
    configure_logs(service.log_level)
    serve_until_stopped(settings, build_backend(settings))
