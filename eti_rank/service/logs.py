"""The service's log: one line per record, on stderr."""

import logging
import sys
from typing import Final

LOGGERS: Final = ("eti_rank", "uvicorn")
"""Configured one by one: SGLang replaces the handlers of the root logger when it starts."""


class OneLine(logging.Formatter):
    """Escapes control characters in messages, and sets tracebacks off, so that no text can forge a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        message = record.getMessage()
        escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
        text = f"{self.formatTime(record)} {record.levelname.lower()} {record.name}: {escaped}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text += "".join(f"\n    | {line}" for line in trace.splitlines())
        return text


def configure_logs(level: str) -> None:
    """Send our records and uvicorn's to stderr, from `level` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
