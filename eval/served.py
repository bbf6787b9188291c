"""Starts ``eti-rank serve`` for a study, and ends it."""

import http.client
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Served:
    """A service that is ready."""

    url: str
    process_id: int
    listening_s: float
    """From process start to listening."""
    ready_s: float
    """From process start to a green ``/readyz``."""


@contextmanager
def service(timeout_s: float = 300.0, **variables: str) -> Iterator[Served]:
    """Run the service on a free port of loopback, with these environment variables.

    Raises:
        RuntimeError: it ended, or was not ready in time; quotes its log.
    """
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        command = [str(Path(sys.executable).with_name("eti-rank")), "serve", "--port", "0"]
        process = subprocess.Popen(command, stderr=log, env=os.environ | variables)

        def said() -> str:
            log.seek(0)
            return log.read()

        def wait(what: str, answer: object) -> float:
            while not answer():  # type: ignore[operator]
                if process.poll() is not None or time.perf_counter() - started > timeout_s:
                    raise RuntimeError(f"the service is not {what}:\n{said()[-2000:]}")
                time.sleep(0.1)
            return time.perf_counter() - started

        try:
            listening_s = wait("listening", lambda: re.search(r"listening on http\S+:(\d+)", said()))
            found = re.search(r"listening on http\S+:(\d+)", said())
            assert found is not None
            url = f"http://127.0.0.1:{found[1]}"
            ready_s = wait("ready", lambda: _is_ready(url.removeprefix("http://")))
            yield Served(url, process.pid, listening_s, ready_s)
        finally:
            process.terminate()
            process.wait(timeout=60)


def _is_ready(address: str) -> bool:
    """Asks with the least work possible: this process shares the cores with the one it waits for."""
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
