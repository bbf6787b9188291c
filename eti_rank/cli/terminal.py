"""What reaches the terminal: our lines, and texts of others made safe for it."""

import os
import sys
import warnings
from typing import NoReturn


def plain(text: str) -> str:
    """The text with everything that a terminal might obey (escapes, overrides, lines) as spaces."""
    return "".join(character if character.isprintable() else " " for character in text)


def complain(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"eti-rank: {plain(message)}\n")


def quieten_libraries() -> None:
    """Keep Python warnings of the libraries below off the terminal, in child processes too.

    ``python -W`` or PYTHONWARNINGS brings them back.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ["PYTHONWARNINGS"] = "ignore"


def leave(code: int) -> NoReturn:
    """End the process; with SGLang loaded, without the interpreter's clean-up.

    There, a library of SGLang lists every object that it finds unfreed, over many lines.
    """
    if "sglang" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
