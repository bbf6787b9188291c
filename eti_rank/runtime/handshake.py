"""Keeps, per request inside the scheduler process, which of our hooks ran, and makes the stamp of it."""

from typing import Any

from eti_rank import __version__
from eti_rank.engine import wire

_ATTRIBUTE = "eti_rank_hooks"


def mark(req: Any, hook: str) -> None:
    """Note on SGLang's request object that a hook ran for it; freed together with the request."""
    ran: set[str] | None = getattr(req, _ATTRIBUTE, None)
    if ran is None:
        setattr(req, _ATTRIBUTE, {hook})
    else:
        ran.add(hook)


def stamp(req: Any) -> wire.Stamp:
    """What we have to say about a request so far."""
    return wire.Stamp(plugin=__version__, hooks=tuple(sorted(getattr(req, _ATTRIBUTE, ()))))
