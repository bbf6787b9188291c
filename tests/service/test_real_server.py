"""The service as a real process behind a real socket: limits, clients that vanish, signals."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.service.server_process import LIMIT_BYTES, WITHIN_S, Server


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def begin(token_s: float = 0.0, start_s: float = 0.0, **settings: object) -> Server:
        started.append(Server(token_s, start_s, **settings))
        return started[-1]

    yield begin
    for server in started:
        server.process.kill()
        server.process.wait()


HEAD = "POST /rerank HTTP/1.1\nHost: test\nContent-Type: application/json\n"


def test_limits_disconnects_and_a_clean_end(start) -> None:
    server = start(token_s=0.01)
    server.wait_until_it_answers("/readyz")

    large = json.dumps({"query": "q", "documents": ["x" * (2 * LIMIT_BYTES)]}).encode()
    assert httpx.post(f"{server.url}/rerank", content=large, timeout=WITHIN_S).status_code == 413

    chunked = server.speak(HEAD + "Transfer-Encoding: chunked\n")
    for _ in range(2 * LIMIT_BYTES // 65536):
        chunked.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
    assert chunked.recv(4096).startswith(b"HTTP/1.1 413")
    chunked.close()

    too_short = server.speak(HEAD + "Content-Length: 10\n", b'{"query": "q", "documents": ["a"]}')
    assert too_short.recv(4096).startswith(b"HTTP/1.1 400")
    too_short.close()

    too_long = server.speak(HEAD + f"Content-Length: {LIMIT_BYTES}\nX-Request-Id: unfinished\n", b"{}")
    too_long.close()
    server.wait_for(r"POST /rerank 499 .* id=unfinished")

    body = json.dumps({"query": "q", "documents": [f"d {n}" for n in range(1500)]}).encode()
    gone = server.speak(HEAD + f"Content-Length: {len(body)}\nX-Request-Id: gone\n", body)
    time.sleep(0.2)
    gone.close()
    server.wait_for(r"POST /rerank 499 .* id=gone")
    started = time.monotonic()
    assert server.rerank(["a", "b"]).status_code == 200
    assert time.monotonic() - started < 2.0, "the engine was not left with the work of the client that went"

    forged = server.speak("GET /healthz HTTP/1.1\nHost: test\nX-Request-Id: a b\n")
    assert b"x-request-id: a b" not in forged.recv(4096).lower()
    forged.close()

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(WITHIN_S) == 0
    assert not any("Traceback" in line for line in server.lines)


def test_sigterm_lets_open_requests_end(start) -> None:
    server = start(token_s=0.05)
    server.wait_until_it_answers("/readyz")
    answers: list[httpx.Response] = []
    client = threading.Thread(target=lambda: answers.append(server.rerank([f"d {n}" for n in range(32)])))
    client.start()
    time.sleep(0.2)
    server.process.send_signal(signal.SIGTERM)
    client.join(WITHIN_S)
    assert answers[0].status_code == 200
    assert server.process.wait(WITHIN_S) == 0


def test_sigterm_while_the_engine_starts(start) -> None:
    server = start(start_s=600.0)
    server.wait_until_it_answers("/healthz")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(WITHIN_S) == 0
