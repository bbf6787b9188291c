"""Imports SGLang once for all of its processes, beside the main process's own import.

SGLang spawns its scheduler and detokenizer, and each imports nearly everything again. On a CPU we
let them fork from a server process that starts importing before the main process does: the start
takes half the time, a restart needs no import at all, and the processes share those pages. With CUDA
a fork after import is not safe (importing may open the driver), so there SGLang spawns as usual.
"""

import multiprocessing
import os
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


def run_forked(
    target: Callable[..., None], variables: dict[str, str], threads: int | None, *args: Any, **kwargs: Any
) -> None:
    """Entry of a forked process: take on the launcher's environment, then run `target`.

    The server process has the environment of the time when it started, and torch's thread count of
    the time when it was imported.
    """
    os.environ.clear()
    os.environ.update(variables)
    if threads is not None:
        import torch  # noqa: PLC0415  # already loaded in this process

        torch.set_num_threads(threads)
    target(*args, **kwargs)
