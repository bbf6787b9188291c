"""One worker: SGLang's HTTP server in this process, with our plugin in its processes.

Arguments and environment are those of the engine in this process. A worker that has not proved its hooks
never says that it is ready, and one whose scheduler has died ends.
"""

import importlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx

from eti_rank.engine import handshake, readout
from eti_rank.engine.sglang_local import arguments, forkserver, lean, plugin
from eti_rank.errors import ConfigurationError, EngineUnavailable, EtiRankError, HookError
from eti_rank.settings import EngineSettings

PROOF_INTERVAL_S = 0.1
"""Between attempts to reach a server that does not listen yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where and for whom a worker listens."""

    host: str
    port: int
    """0 takes a free one."""
    api_key: str | None = None
    """What SGLang asks for, on every path but those of its health."""


def serve(
    settings: EngineSettings,
    *,
    checkpoint: str,
    max_prompt_tokens: int,
    listening: Listening,
    on_ready: Callable[[str], None],
    on_failure: Callable[[EtiRankError], None],
) -> None:
    """Serve until SIGTERM (open requests are finished) or Ctrl-C; call it in the main thread.

    Args:
        settings: what to start; `kind` and `remote` do not matter.
        checkpoint: folder or hub name of the model.
        max_prompt_tokens: longest prompt that will be asked for.
        listening: address and key.
        on_ready: called in another thread with the worker's URL, once it has proved itself.
        on_failure: called in another thread when the proof fails or a process dies; ends this process.

    Raises:
        ConfigurationError: the address cannot be listened on, or the device is not there.
        HookError: a path inside SGLang is not as expected.
        EngineUnavailable: SGLang did not start.
    """
    device = arguments.device_of(settings)
    port = claim_port(listening)
    variables = arguments.environment(settings, device)
    signal.signal(signal.SIGTERM, _stop)  # until SGLang sets its own, which drains
    with forkserver.environment(variables):
        if device == "cpu":
            forkserver.start(variables)
        with lean.imports():
            http_launch = importlib.import_module("eti_rank.engine.sglang_local.http_launch")
        if (hooks := handshake.wanted_hooks(settings)) is not None:
            plugin.check((*hooks, "launch", "server"))
        http_launch.run(
            arguments.server_arguments(
                settings, checkpoint=checkpoint, device=device, max_prompt_tokens=max_prompt_tokens
            )
            | {
                "host": listening.host,
                "port": port,
                "api_key": listening.api_key,
                "skip_server_warmup": False,  # ours is the handshake
            },
            forked=device == "cpu",
            threads=arguments.threads_of(settings, device),
            prove=_prover(settings, listening, on_failure),
            on_ready=on_ready,
            on_death=lambda dead: on_failure(EngineUnavailable(f"SGLang died: {dead}")),
        )


def claim_port(listening: Listening) -> int:
    """The port, once it is known that it can be listened on; between this and SGLang it is free again.

    Raises:
        ConfigurationError: it cannot.
    """
    family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
    try:
        with socket.create_server((listening.host, listening.port), family=family) as claimed:
            return int(claimed.getsockname()[1])
    except OSError as error:
        raise ConfigurationError(
            f"a worker cannot listen on {listening.host} port {listening.port}: {error.strerror or error}"
        ) from None


def _prover(
    settings: EngineSettings, listening: Listening, on_failure: Callable[[EtiRankError], None]
) -> Callable[[str], bool]:
    def prove(url: str) -> bool:
        key = listening.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            with httpx.Client(base_url=url, transport=httpx.HTTPTransport(), headers=headers) as client:
                meta_info = _probe(client, settings.start_timeout_s)
            handshake.prove(meta_info, hooks=handshake.wanted_hooks(settings))
        except (EngineUnavailable, HookError) as error:
            on_failure(error)
            return False
        return True

    return prove


def _probe(client: httpx.Client, timeout_s: float) -> dict[str, Any]:
    """The answer to the probe, from a server that may not listen yet."""
    body = readout.request(handshake.PROBE) | {"rid": handshake.PROBE.step_id}
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            response = client.post("/generate", json=body, timeout=timeout_s)
        except httpx.ConnectError as error:
            if time.monotonic() > deadline_s:
                raise EngineUnavailable(f"the server did not listen within {timeout_s:g} s") from error
            time.sleep(PROOF_INTERVAL_S)
            continue
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"the server did not answer the probe: {error}") from error
        if response.status_code != HTTPStatus.OK:
            raise EngineUnavailable(f"the server answered the probe with {response.status_code}")
        meta_info: dict[str, Any] = response.json()["meta_info"]
        return meta_info


def _stop(*_: object) -> None:
    """Nothing is open yet; the processes below end with their launcher."""
    os._exit(0)
