"""Text that comes from documents or other programs, made safe for a terminal."""

import sys


def plain(text: str) -> str:
    """The text with everything that a terminal might obey (escapes, overrides, lines) as spaces."""
    return "".join(character if character.isprintable() else " " for character in text)


def complain(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"eti-rank: {plain(message)}\n")
