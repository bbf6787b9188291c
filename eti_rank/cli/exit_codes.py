"""Exit codes, and the one place that maps errors to them."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from eti_rank import errors


class ExitCode(IntEnum):
    """What a shell learns."""

    OK = 0
    INPUT_FAILED = 1
    """An answer was given, but a line could not be read or a document could not be scored."""
    USAGE = 2
    """Arguments, settings, installation or the request are wrong."""
    ENGINE_UNAVAILABLE = 3
    """The engine or the service could not do the work; trying again may help."""
    INTERNAL = 70
    """A fault of eti-rank itself (EX_SOFTWARE)."""
    INTERRUPTED = 130
    """Ctrl-C (128 + SIGINT)."""


EXIT_CODES: Final[Mapping[type[errors.EtiRankError], ExitCode]] = {
    errors.EtiRankError: ExitCode.INTERNAL,
    errors.InvalidInput: ExitCode.USAGE,
    errors.MalformedInput: ExitCode.USAGE,
    errors.InputTooLarge: ExitCode.USAGE,
    errors.InvalidField: ExitCode.USAGE,
    errors.DomainError: ExitCode.INTERNAL,
    errors.ConfigurationError: ExitCode.USAGE,
    errors.ProfileError: ExitCode.USAGE,
    errors.ModelUnavailable: ExitCode.USAGE,
    errors.EngineError: ExitCode.ENGINE_UNAVAILABLE,
    errors.EngineUnavailable: ExitCode.ENGINE_UNAVAILABLE,
    errors.UnsupportedRequest: ExitCode.USAGE,
    errors.HookError: ExitCode.USAGE,
    errors.ServiceError: ExitCode.ENGINE_UNAVAILABLE,
    errors.Overloaded: ExitCode.ENGINE_UNAVAILABLE,
}


def exit_code(error: errors.EtiRankError) -> ExitCode:
    """The code of the error's own class, else of its nearest ancestor."""
    return next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)
