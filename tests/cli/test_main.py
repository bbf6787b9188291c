"""The command as a whole: help, exit codes, last resort, and how little it imports."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eti_rank import errors
from eti_rank.cli.exit_codes import EXIT_CODES, ExitCode, exit_code
from tests.rerank_double import DoubleModel

ROOT = Path(__file__).parents[2]


def all_classes(root: type) -> set[type]:
    return {root}.union(*(all_classes(child) for child in root.__subclasses__()))


def test_the_table_covers_the_whole_tree() -> None:
    ours = {kind for kind in all_classes(errors.EtiRankError) if kind.__module__ == "eti_rank.errors"}
    assert set(EXIT_CODES) == ours


def test_an_error_below_the_tree_ends_as_its_ancestor() -> None:
    class Special(errors.EngineUnavailable):
        pass

    assert exit_code(Special()) is ExitCode.ENGINE_UNAVAILABLE


def test_subcommands_are_these(run) -> None:
    ran = run("--help")
    assert ran.code == 0
    commands = ran.out.split("Commands:")[1].splitlines()
    assert [line.split()[0] for line in commands if line.strip()] == ["rerank", "serve", "doctor"]
    told = " ".join(ran.out.split())
    assert all(f"{code.value} " in told for code in ExitCode if code is not ExitCode.INTERRUPTED)


@pytest.mark.parametrize("command", ["rerank", "serve", "doctor"])
def test_each_subcommand_has_help(run, command) -> None:
    assert run(command, "--help").code == 0


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['eti-rank', '--help']\n"
        "from eti_rank.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n    print(sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    started = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert time.perf_counter() - started < 2.0, "0.1 s on an idle machine"
    for heavy in ("pydantic", "fastapi", "httpx", "numpy", "torch", "sglang"):
        assert f"'{heavy}'" not in ran.stderr


def test_an_unforeseen_error_is_exit_code_70_and_is_logged(run, own_engine, monkeypatch, caplog) -> None:
    class Broken(DoubleModel):
        def shared_prefix_tokens(self, prompts):
            raise RuntimeError("a fault of ours")

    monkeypatch.setattr("eti_rank.models.reranker_model.prepare_model", lambda _settings: Broken())
    ran = run("rerank", "--query", "q", "--documents", "-", stdin=b'"a"')
    assert ran.code == 70
    assert "internal error" in ran.err
    assert "a fault of ours" in ran.err + caplog.text


def test_an_engine_that_does_not_start_is_exit_code_3(run, own_engine, monkeypatch) -> None:
    async def start(_self) -> None:
        raise errors.EngineUnavailable("out of memory")

    monkeypatch.setattr("eti_rank.engine.scripted.Scripted.start", start)
    ran = run("rerank", "--query", "q", "--documents", "-", stdin=b'"a"')
    assert ran.code == 3
    assert "out of memory" in ran.err


def test_wrong_golden_scores_are_exit_code_2(run, own_engine, monkeypatch) -> None:
    model = DoubleModel(golden=[("q", "a", 100.0)])
    monkeypatch.setattr("eti_rank.models.reranker_model.prepare_model", lambda _settings: model)
    ran = run("rerank", "--query", "q", "--documents", "-", stdin=b'"a"')
    assert ran.code == 2
    assert "golden score" in ran.err


def test_serving_on_a_taken_port_is_exit_code_2(run, own_engine) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run("serve", "--port", str(taken.getsockname()[1]))
    assert ran.code == 2
    assert "cannot listen on 127.0.0.1" in ran.err


@pytest.mark.parametrize("loaded", [False, True], ids=["without-sglang", "with-sglang"])
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [(["rerank", "--help"], 0, "--documents"), (["rerank", "--unknown"], 2, "--unknown")],
    ids=["help", "wrong-usage"],
)
def test_the_exit_code_and_all_output_reach_the_shell(loaded, arguments, code, says) -> None:
    pretend = "import types; sys.modules['sglang'] = types.ModuleType('sglang')" if loaded else ""
    program = f"import sys\n{pretend}\nfrom eti_rank.cli.main import main\nmain()"
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code
    assert says in ran.stdout + ran.stderr
