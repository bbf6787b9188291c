"""The service with the scripted engine as a real process behind a real socket."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
LIMIT_BYTES = 1 << 20
WITHIN_S = 10.0


class Server:
    """A server process with its log."""

    def __init__(self, token_s: float, start_s: float, **settings: object) -> None:
        own = {f"ETI_RANK_{name.upper()}": str(value) for name, value in settings.items()}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ETI_RANK_")}
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "service" / "scripted_server.py"), str(token_s), str(start_s)],
            env=inherited
            | {"PYTHONPATH": str(ROOT), "ETI_RANK_SERVICE__PORT": "0"}
            | {"ETI_RANK_LIMITS__MAX_BODY_BYTES": str(LIMIT_BYTES)}
            | own,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(self.wait_for(r"listening on http://127\.0\.0\.1:(\d+)").group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in the log:\n{''.join(self.lines)}")

    def wait_until_it_answers(self, path: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            try:
                if httpx.get(self.url + path).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.01)
        raise AssertionError(f"{path} never turned 200:\n{''.join(self.lines)}")

    def rerank(self, documents: list[str]) -> httpx.Response:
        return httpx.post(f"{self.url}/rerank", json={"query": "q", "documents": documents}, timeout=WITHIN_S)

    def speak(self, head: str, body: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S)
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n" + body)
        return connection
