"""`eti-rank worker` as a process: real SGLang servers on a small random-weight model."""

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from eti_rank.engine.protocol import Engine
from eti_rank.engine.sglang_remote import SglangRemote
from eti_rank.settings import EngineSettings
from tests.tiny_models import make_tiny_checkpoint

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, str(ROOT / "tests" / "runtime" / "worker_command.py"), "worker"]
KEY = "open-sesame"
MAX_PROMPT_TOKENS = 512
START_WITHIN_S = 180.0
PROFILE = """
name = "tiny"
architecture = "LlamaForCausalLM"
scorer = "label"
[source]
kind = "checkpoint"
path = "{checkpoint}"
[template]
parts = ["<|im_start|>system\\nJudge.", "Query: {{query}}\\nDocument: {{document}}", "<|im_end|>\\n"]
[labels]
positive = ["yes"]
negative = ["no"]
[limits]
max_prompt_tokens = 512
max_query_tokens = 128
[golden]
tolerance_nats = {{ float32 = 1e-3, float16 = 1e-1, bfloat16 = 1e-1 }}
"""


class WorkerProcess:
    """One worker with its log; does not wait for it to be ready.

    Args:
        checkpoint: folder of a Llama.
        port: 0 takes a free one.
        variables: of its environment, beside those that make it small.
    """

    def __init__(self, checkpoint: Path, port: int = 0, **variables: str) -> None:
        profile = checkpoint / "tiny.toml"
        profile.write_text(PROFILE.format(checkpoint=checkpoint))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ETI_RANK_")}
        own = {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
            "ETI_RANK_ENGINE__GENERATION": "true",
            "ETI_RANK_MODEL__PROFILE": str(profile),
            "ETI_RANK_ENGINE__THREADS": "1",
            "ETI_RANK_ENGINE__MAX_TOTAL_TOKENS": "4096",
            "ETI_RANK_ENGINE__MAX_RUNNING_REQUESTS": "4",
            "ETI_RANK_ENGINE__REMOTE__API_KEY": KEY,
        }
        self.process = subprocess.Popen(
            [*COMMAND, "--port", str(port)],
            env=inherited | own | variables,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def url(self) -> str:
        """Waits until the worker is ready."""
        deadline_s = time.monotonic() + START_WITHIN_S
        while not (found := re.search(r"worker ready on (http://\S+)", self.log)):
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"the worker is not ready (exit {self.process.poll()}):\n{self.log}")
            time.sleep(0.05)
        return found[1]

    def family(self) -> list[psutil.Process]:
        """The worker and all that came of it."""
        worker = psutil.Process(self.process.pid)
        return [worker, *worker.children(recursive=True)]

    def scheduler(self) -> psutil.Process:
        """The process that the model runs in: of the fork server's two children, the larger."""
        leaves = [process for process in self.family() if not process.children()]
        return max(leaves, key=lambda process: process.memory_info().rss)

    def ended(self, within_s: float) -> int:
        """The exit code, once its log is complete."""
        code = self.process.wait(timeout=within_s)
        self._reader.join(timeout=5)
        return code

    def kill(self) -> None:
        """As a crash would; what came of it must go by itself."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        for process in self.family() if self.process.poll() is None else []:
            process.kill()
        self.process.wait()


def engine_on(checkpoint: Path, *urls: str, **remote: object) -> SglangRemote:
    """A new engine on workers of this model."""
    chosen = {"urls": urls, "api_key": KEY, "health_interval_s": 0.5, "down_after_s": 1.0} | remote
    settings = EngineSettings.model_validate({"kind": "sglang_remote", "remote": chosen})
    return SglangRemote(settings, str(checkpoint), MAX_PROMPT_TOKENS)


_contract: list[WorkerProcess] = []


def engine_on_worker_process() -> SglangRemote:
    """A new engine for the engines' contract, on a worker that is shared until it is killed."""
    checkpoint = Path(tempfile.mkdtemp(prefix="eti-rank-"))
    make_tiny_checkpoint(checkpoint, architecture="llama")
    if not _contract or _contract[-1].process.poll() is not None:
        _contract.append(WorkerProcess(checkpoint))
        atexit.register(_contract[-1].close)
    return engine_on(checkpoint, _contract[-1].url)


def kill_worker_process(engine: Engine) -> None:
    """Let the worker of `engine_on_worker_process` die."""
    os.kill(_contract[-1].process.pid, signal.SIGKILL)
