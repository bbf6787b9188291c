"""Imports SGLang once for all of its processes, beside the main process's own import.

SGLang spawns its scheduler and detokenizer, and each imports nearly everything again. On a CPU we
let them fork from a server process that starts importing before the main process does: the start
takes half the time, a restart needs no import at all, and the processes share those pages. With CUDA
a fork after import is not safe (importing may open the driver), so there SGLang spawns as usual.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

PRELOAD = "eti_rank.engine.sglang_local.preload"


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the duration; what was there before comes back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def start(variables: Mapping[str, str]) -> None:
    """Start the server process with these variables, if it does not run yet; does not wait for it."""
    multiprocessing.set_forkserver_preload([PRELOAD])
    with environment(variables):
        forkserver.ensure_running()


@contextmanager
def start_method(name: str) -> Iterator[None]:
    """Let `multiprocessing.Process` use a start method for the duration."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(name, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def run_in_child(
    target: Callable[..., None], variables: dict[str, str], threads: int | None, *args: Any, **kwargs: Any
) -> None:
    """Entry of a child process: take on the launcher's environment, then run `target`.

    A forked child starts with the environment of the time when the server process started, and with
    torch's thread count of the time when it was imported. An interrupt from the keyboard goes to all
    processes of a terminal; only the launcher answers it, by closing the engine.
    """
    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_launcher, name="launcher-watch", daemon=True).start()
    if threads is not None:
        import torch  # noqa: PLC0415  # SGLang's processes load it in any case

        torch.set_num_threads(threads)
    target(*args, **kwargs)


def _end_with_launcher() -> None:
    """Die when the launcher is gone: a forked child's parent is the server process, which stays for it."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    multiprocessing.connection.wait([launcher.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
