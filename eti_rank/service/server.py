"""Serves the application on a socket until a signal comes."""

import logging
import signal
import socket
import sys

import uvicorn

from eti_rank.errors import ConfigurationError
from eti_rank.service.app import create_app
from eti_rank.service.backend import Backend
from eti_rank.settings import ServiceSettings, Settings

log = logging.getLogger(__name__)


def serve(settings: Settings, backend: Backend) -> None:
    """Listen and answer until SIGTERM or SIGINT; then open requests and the engine end first.

    Raises:
        ConfigurationError: the address cannot be listened on.
        SystemExit: with code 0, after SIGTERM.
        KeyboardInterrupt: after SIGINT.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it is done
    listener = _listen(settings.service)
    config = uvicorn.Config(
        create_app(backend, settings.limits),
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=settings.service.shutdown_grace_s,
    )
    with listener:
        host, port = listener.getsockname()[:2]
        log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        uvicorn.Server(config).run(sockets=[listener])


def _listen(settings: ServiceSettings) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {settings.host}:{settings.port}: {error}") from None
    return listener
