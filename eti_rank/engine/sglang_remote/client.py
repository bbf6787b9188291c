"""One worker's HTTP interface, as far as it is used: SGLang's own, or that of SGLang's router.

Every answer is what was asked for, or UnsupportedRequest (the step is wrong), or a kind of WorkerFault
(the worker is). Texts of errors may reach callers of the service, so they do not name the worker.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import httpx

from eti_rank.engine.sglang_remote.faults import WorkerBusy, WorkerFault, WorkerLost
from eti_rank.engine.sglang_remote.lanes import CONNECTIONS, Lanes
from eti_rank.errors import ConfigurationError, UnsupportedRequest
from eti_rank.settings import RemoteSettings

BUSY: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
"""Client errors by which a router asks to come back later."""
ABOUT_US: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""Client errors that say nothing about the step: wrong key, or not an SGLang server at all."""
CONTROL_CONNECTIONS: Final = 72
"""For checks and aborts; more than there can be of these at once."""
SSE_DATA, SSE_END = "data: ", "data: [DONE]"
SHOWN_CHARACTERS: Final = 300
"""Start of a worker's message that goes into ours."""


class WorkerClient:
    """Speaks to one worker or router.

    Args:
        url: its base URL.
        settings: timeouts, limits and key.

    Raises:
        ConfigurationError: not an ``http`` or ``https`` URL with a host and without a password.
    """

    def __init__(self, url: str, settings: RemoteSettings) -> None:
        self.url = url.rstrip("/")
        self.behind: dict[str, WorkerClient] | None = None
        """Workers behind a router, by URL, as `look_behind` last found them healthy; None for a worker."""
        self._known: dict[str, WorkerClient] = {}
        self._settings = settings
        key = settings.api_key
        headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
        base_url, verify = _base_url(url), httpx.create_ssl_context()
        limits = httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=settings.keepalive_s)

        def client() -> httpx.AsyncClient:
            # A transport of our own: proxies of the environment are not for machines of a cluster.
            transport = httpx.AsyncHTTPTransport(verify=verify, limits=limits)
            return httpx.AsyncClient(base_url=base_url, transport=transport, headers=headers)

        self._steps = Lanes(client, settings.max_connections)
        self._control = Lanes(client, CONTROL_CONNECTIONS)  # must not wait for steps

    async def close(self) -> None:
        """Close all connections."""
        await self._steps.aclose()
        await self._control.aclose()
        for worker in self._known.values():
            await worker.close()

    async def generate(self, body: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Run one step; its ``meta_info``.

        Raises:
            UnsupportedRequest: the worker refuses the step.
            WorkerFault: the worker is at fault.
        """
        answer = _decoded(_checked(await self._request(self._steps, "POST", "/generate", timeout_s, body)))
        meta_info = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta_info, dict):
            raise WorkerFault("/generate was answered without meta_info; is it an SGLang server?")
        return meta_info

    async def stream(self, body: dict[str, Any], *, timeout_s: float) -> AsyncGenerator[dict[str, Any], None]:
        """Run one generation; yields SGLang's answers, each of which holds everything so far.

        Args:
            body: with ``stream``.
            timeout_s: between two answers.

        Raises:
            UnsupportedRequest: the worker refuses the step.
            WorkerFault: the worker is at fault.
        """
        with self._faults("/generate", timeout_s):
            async with (
                self._steps.client() as client,
                client.stream("POST", "/generate", json=body, timeout=self._timeout(timeout_s)) as response,
            ):
                if not response.is_success:
                    await response.aread()
                    _checked(response)
                async for line in response.aiter_lines():
                    if line == SSE_END:
                        return
                    if line.startswith(SSE_DATA):
                        yield _streamed(line.removeprefix(SSE_DATA))
        raise WorkerLost("/generate stopped in the middle of an answer")

    async def abort(self, rid: str) -> None:
        """Let the worker drop a step; a router does not pass that on, so all of its workers are told.

        Raises:
            EngineError: it did not take that; it notices the closed connection all the same, later.
        """
        if self.behind is not None:
            await asyncio.gather(*(worker.abort(rid) for worker in self.behind.values()))
            return
        await self._ask("POST", "/abort_request", self._settings.connect_timeout_s, {"rid": rid})

    async def check_health(self) -> None:
        """Ask whether a worker answers and takes steps; of a router it would show only that it runs.

        Raises:
            EngineError: it does not.
        """
        await self._ask("GET", "/health", self._settings.health_timeout_s)

    async def flush_cache(self, timeout_s: float) -> None:
        """Empty the radix cache, or those of all workers of a router.

        Raises:
            EngineError: it refuses, as it does while steps are open.
        """
        path = f"/flush_cache?timeout={timeout_s:g}"
        await self._ask("POST", path, self._settings.health_timeout_s + timeout_s)

    async def info(self, path: str) -> dict[str, Any]:
        """What a worker says of itself under ``/model_info`` or ``/server_info``.

        Raises:
            EngineError: it does not answer so.
        """
        found = _decoded(await self._ask("GET", path, self._settings.health_timeout_s))
        if not isinstance(found, dict):
            raise WorkerFault(f"{path} was answered with something else than an object")
        return found

    async def look_behind(self) -> None:
        """Find out whether this is a router, and which workers it takes for healthy: sets `behind`.

        Raises:
            EngineError: it does not answer.
        """
        timeout_s = self._settings.health_timeout_s
        response = await self._request(self._control, "GET", "/workers", timeout_s)
        if response.status_code == HTTPStatus.NOT_FOUND:
            self.behind = None
            return
        listed = _decoded(_checked(response))
        try:
            urls = [str(worker["url"]) for worker in listed["workers"] if worker["is_healthy"]]
        except (KeyError, TypeError):
            raise WorkerFault("/workers was answered otherwise than SGLang's router does") from None
        for url in urls:
            if url not in self._known:
                self._known[url] = WorkerClient(url, self._settings)
        self.behind = {url: self._known[url] for url in urls}

    async def _ask(
        self, method: str, path: str, timeout_s: float, body: dict[str, Any] | None = None
    ) -> httpx.Response:
        return _checked(await self._request(self._control, method, path, timeout_s, body))

    async def _request(
        self,
        lanes: Lanes,
        method: str,
        path: str,
        timeout_s: float,
        body: dict[str, Any] | None = None,
    ) -> httpx.Response:
        with self._faults(path, timeout_s):
            async with lanes.client() as client:
                return await client.request(method, path, json=body, timeout=self._timeout(timeout_s))

    def _timeout(self, timeout_s: float) -> httpx.Timeout:
        return httpx.Timeout(timeout_s, connect=self._settings.connect_timeout_s, pool=None)

    @contextmanager
    def _faults(self, path: str, timeout_s: float) -> Iterator[None]:
        """Turn what httpx raises into faults of the worker."""
        try:
            yield
        except httpx.TimeoutException as error:
            connect_s = self._settings.connect_timeout_s
            waited_s = connect_s if isinstance(error, httpx.ConnectTimeout) else timeout_s
            raise WorkerLost(f"{path} was not answered within {waited_s:g} s") from error
        except httpx.HTTPError as error:
            raise WorkerLost(f"{path} was not answered: {str(error) or type(error).__name__}") from error


def _base_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"engine.remote.urls: {url!r} is not a URL: {error}") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.userinfo:
        named = str(parsed.copy_with(userinfo=b""))
        raise ConfigurationError(
            f"engine.remote.urls: a worker is named http://host:port, with https too, but without a "
            f"password; not {named!r}"
        )
    return parsed


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    status, message = response.status_code, _message(response)
    if response.is_client_error and status not in BUSY | ABOUT_US:
        raise UnsupportedRequest(f"SGLang refused the step: {message}")
    said = f"{response.url.path} was answered with {status}: {message}"
    raise WorkerBusy(said) if status in BUSY else WorkerFault(said)


def _decoded(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise WorkerFault(f"{response.url.path} was answered with something else than JSON") from None


def _streamed(text: str) -> dict[str, Any]:
    """One answer of a stream; after its beginning SGLang reports errors in it, and says 200."""
    try:
        answer = json.loads(text)
    except ValueError:
        raise WorkerFault("/generate streamed something else than JSON") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("meta_info"), dict):
        said = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(said, dict):
            raise UnsupportedRequest(
                f"SGLang refused the step: {str(said.get('message'))[:SHOWN_CHARACTERS]}"
            )
        raise WorkerFault("/generate streamed an answer without meta_info; is it an SGLang server?")
    return answer


def _message(response: httpx.Response) -> str:
    """What SGLang or a router says went wrong: in `message`, `error` or `error.message`."""
    try:
        said = response.json()
    except ValueError:
        said = response.text
    for key in ("error", "message"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return " ".join(str(said).split())[:SHOWN_CHARACTERS] or "no reason given"
