"""Runs the command in this process."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from eti_rank.cli import main
from tests.rerank_double import DoubleModel


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs `eti-rank` with arguments, all but the end of the process; no setting of this machine counts."""
    import os

    for name in [name for name in os.environ if name.startswith("ETI_RANK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")

    def command(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["eti-rank", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main.run()
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return command


@pytest.fixture
def own_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the command start the scripted engine under the double of a model."""
    monkeypatch.setattr("eti_rank.models.reranker_model.prepare_model", lambda _settings: DoubleModel())
    monkeypatch.setenv("ETI_RANK_ENGINE__KIND", "scripted")
