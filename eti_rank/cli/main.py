"""The command `eti-rank` and its last resort for errors."""

import logging

import typer

from eti_rank.cli import doctor, rerank, serve
from eti_rank.cli.exit_codes import ExitCode, exit_code
from eti_rank.cli.terminal import complain, leave
from eti_rank.errors import EtiRankError, InvalidInput

HELP = """Rerank documents with a language model on SGLang.

Exit codes: 0 all well; 1 an answer was given, but some input failed; 2 arguments, settings or request
are wrong; 3 the engine or the service is unavailable; 70 a fault of eti-rank itself.
"""


def build_app() -> typer.Typer:
    """The command line; subcommands import what they need when they run."""
    app = typer.Typer(
        name="eti-rank",
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.command()(rerank.rerank)
    app.command()(serve.serve)
    app.command()(doctor.doctor)
    return app


def main() -> None:
    """Entry point: runs a subcommand and ends the process, at once."""
    leave(run())


def run() -> int:
    """Run the subcommand that the process's arguments name; returns one of the exit codes."""
    try:
        build_app()()
    except SystemExit as ended:  # how typer ends in any case
        return int(ended.code or 0)
    except EtiRankError as error:
        where = f"{error.param}: " if isinstance(error, InvalidInput) and error.param else ""
        complain(f"{where}{error}")
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception:
        logging.getLogger(__name__).exception("unhandled error")
        complain("internal error; please report the lines above")
        return ExitCode.INTERNAL
    return ExitCode.OK
