"""`eti-rank doctor`: what this machine has and lacks."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eti_rank.cli.exit_codes import ExitCode
from eti_rank.cli.terminal import plain, quieten_libraries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eti_rank.cli.findings import Finding


def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
) -> None:
    """Say what this machine has and lacks, down to each place where SGLang is touched.

    Exits with 2 if something is missing that these settings need.
    """
    from eti_rank.cli.findings import State, examine

    quieten_libraries()
    findings = examine(config)
    if as_json:
        json.dump([finding.as_dict() for finding in findings], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _show(findings)
    if any(finding.state is State.MISSING for finding in findings):
        raise typer.Exit(ExitCode.USAGE)


def _show(findings: "Sequence[Finding]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        table.add_row(*(Text(plain(cell)) for cell in (finding.state, finding.name, finding.detail)))
    Console(highlight=False, markup=False, emoji=False).print(table)
