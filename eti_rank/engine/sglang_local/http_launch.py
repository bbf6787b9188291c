"""SGLang's HTTP server, launched our way: forked processes on a CPU, ready only when it has proved itself.

Importing this module imports SGLang and its HTTP server. What is done here is SGLang's own
``launch_server`` in its two halves, with our class of engines in the first.
"""

import multiprocessing.connection
import threading
from collections.abc import Callable
from typing import Any

from sglang.srt.entrypoints.http_server import _setup_and_run_http_server
from sglang.srt.managers.tokenizer_manager import ServerStatus
from sglang.srt.plugins import load_plugins

from eti_rank.engine.sglang_local.launch import LaunchedEngine, launched_class
from eti_rank.errors import EngineUnavailable


def run(
    arguments: dict[str, Any],
    *,
    forked: bool,
    threads: int | None,
    prove: Callable[[str], bool],
    on_ready: Callable[[str], None],
    on_death: Callable[[str], None],
) -> None:
    """Launch and serve, in the main thread; returns when SGLang has drained and stopped after SIGTERM.

    Args:
        arguments: of SGLang's `ServerArgs`.
        forked: whether its processes fork from the fork server.
        threads: compute threads of the scheduler process.
        prove: called in a thread with the server's URL once it listens; ``/health`` and ``/ready`` say 503
            until it has returned true.
        on_ready: called in a thread with the URL, after `prove`.
        on_death: called in a thread, if a process dies that was not to, with the names of the dead.

    Raises:
        EngineUnavailable: SGLang did not start.
    """
    load_plugins()
    try:
        with launched_class(forked=forked, threads=threads) as engine_class:
            server_args = LaunchedEngine.server_args_class(**arguments)
            manager, templates, ports, init, watchdog, _ = engine_class._launch_subprocesses(
                server_args=server_args,
                init_tokenizer_manager_func=engine_class.init_tokenizer_manager_func,
                run_scheduler_process_func=engine_class.run_scheduler_process_func,
                run_detokenizer_process_func=engine_class.run_detokenizer_process_func,
            )
    except (RuntimeError, ValueError, OSError, AssertionError) as error:
        raise EngineUnavailable(f"SGLang did not start: {error}") from error

    watchdog.stop()  # it would answer a death with SIGKILL to all, without a word
    stopping = threading.Event()

    def watch() -> None:
        multiprocessing.connection.wait([process.sentinel for process in engine_class.processes])
        if not stopping.is_set() and not manager.gracefully_exit:
            dead = [process for process in engine_class.processes if not process.is_alive()]
            on_death(", ".join(f"{process.name} (exit {process.exitcode})" for process in dead))

    def warm_up(_server_args: Any) -> bool:
        if not prove(server_args.url()):
            return False
        manager.server_status = ServerStatus.Up
        return True

    threading.Thread(target=watch, name="sglang-watch", daemon=True).start()
    try:
        _setup_and_run_http_server(
            server_args,
            manager,
            templates,
            ports,
            init.scheduler_infos,
            None,
            execute_warmup_func=warm_up,
            launch_callback=lambda: on_ready(server_args.url()),
        )
    finally:
        stopping.set()
        for process in engine_class.processes:
            process.kill()
