"""SGLang's `Engine`, launched our way: forked processes on a CPU, and their handles kept.

Importing this module imports SGLang (7 s); `SglangLocal` does so in its own thread.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

from sglang.srt.entrypoints.engine import Engine

from eti_rank.engine.sglang_local import forkserver


class LaunchedEngine(Engine):  # type: ignore[misc]
    """SGLang's engine; `launch` sets the class attributes of a subclass before construction."""

    forked: ClassVar[bool] = False
    threads: ClassVar[int | None] = None
    processes: ClassVar[list[BaseProcess]] = []
    """Scheduler and detokenizer processes of the engine that is being constructed."""

    @classmethod
    def _launch_scheduler_processes(
        cls, server_args: Any, port_args: Any, run_scheduler_process_func: Callable[..., None], **kwargs: Any
    ) -> Any:
        with cls._start_method():
            result, processes = super()._launch_scheduler_processes(
                server_args, port_args, cls._entry(run_scheduler_process_func), **kwargs
            )
        cls.processes.extend(processes)
        return result, processes

    @classmethod
    def _launch_detokenizer_subprocesses(
        cls, server_args: Any, port_args: Any, run_detokenizer_process_func: Callable[..., None]
    ) -> Any:
        with cls._start_method():
            processes, names = super()._launch_detokenizer_subprocesses(
                server_args, port_args, cls._entry(run_detokenizer_process_func)
            )
        cls.processes.extend(processes)
        return processes, names

    @classmethod
    def _start_method(cls) -> Any:
        return forkserver.start_method("forkserver" if cls.forked else "spawn")

    @classmethod
    def _entry(cls, target: Callable[..., None]) -> Callable[..., None]:
        return functools.partial(forkserver.run_in_child, target, dict(os.environ), cls.threads)


@contextlib.contextmanager
def launched_class(*, forked: bool, threads: int | None) -> Iterator[type[LaunchedEngine]]:
    """A class of engines of its own, for one launch; if that fails, its processes are killed."""

    class ConfiguredEngine(LaunchedEngine):
        pass

    ConfiguredEngine.forked, ConfiguredEngine.threads, ConfiguredEngine.processes = forked, threads, []
    try:
        yield ConfiguredEngine
    except BaseException:
        for process in ConfiguredEngine.processes:
            process.kill()
        raise


def launch(
    arguments: dict[str, Any], *, forked: bool, threads: int | None
) -> tuple[LaunchedEngine, list[BaseProcess]]:
    """Construct an engine; returns it with its processes.

    SGLang's own watchdog answers a dead process with SIGQUIT to everything, us included; it is stopped
    here, and `SglangLocal` watches the processes instead.
    """
    with launched_class(forked=forked, threads=threads) as engine_class:
        engine = engine_class(**arguments)
    engine.tokenizer_manager._subprocess_watchdog.stop()
    return engine, engine_class.processes


def release(engine: LaunchedEngine) -> None:
    """Close the sockets of an engine whose processes are gone; runs in the thread of its loop.

    What was sent to a dead process is dropped. Left to the garbage collector, the sockets would wait
    for ever for somebody to take it.
    """
    manager = engine.tokenizer_manager
    for socket in (engine.send_to_rpc, manager.recv_from_detokenizer, manager.send_to_scheduler):
        socket.context.destroy(linger=0)
