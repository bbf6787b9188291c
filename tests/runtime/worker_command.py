"""The command `eti-rank worker`, as a program."""

import typer

from eti_rank.cli import main as command_line
from eti_rank.cli.worker import run_worker

_build_app = command_line.build_app


def build_app() -> typer.Typer:
    app = _build_app()
    app.command("worker")(run_worker)
    return app


if __name__ == "__main__":
    command_line.build_app = build_app
    command_line.main()
