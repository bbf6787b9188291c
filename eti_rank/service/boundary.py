"""The outermost layer of the service: request ids, the access log, and the last resort."""

import logging
import re
import time
import uuid
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eti_rank.service.problems import internal_error
from eti_rank.service.schemas import REQUEST_ID

HEADER: Final = "x-request-id"
CLIENT_GONE: Final = 499
PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Asked every few seconds by whoever watches the service; logged at level debug."""

log = logging.getLogger(__name__)


class Boundary:
    """ASGI layer around everything else.

    Each request gets an id (its header X-Request-Id if that is safe to log, else a new one) as
    `request.state.request_id`; inner layers may replace it. The answer carries it as a header, and
    one line of the log has it with method, path, status and time, never with content. An error that
    nobody handled is logged under the id and answered without a word about itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = _request_id(Headers(scope=scope).get(HEADER))
        started_s = time.perf_counter()
        status = CLIENT_GONE  # unless an answer starts

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = state["request_id"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            pass  # logged below, and nobody is left to be answered
        except Exception:
            log.exception("unhandled error in request %s", state["request_id"])
            if status == CLIENT_GONE:
                await internal_error(state["request_id"])(scope, receive, send_with_id)
        finally:
            log.log(
                logging.DEBUG if scope["path"] in PROBES else logging.INFO,
                "%s %s %d %.0f ms id=%s",
                scope["method"],
                scope.get("raw_path", b"?").decode("ascii", "backslashreplace"),
                status,
                1000 * (time.perf_counter() - started_s),
                state["request_id"],
            )


def _request_id(wanted: str | None) -> str:
    if wanted is not None and re.fullmatch(REQUEST_ID, wanted):
        return wanted
    return uuid.uuid4().hex
