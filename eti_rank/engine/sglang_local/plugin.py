"""Our plugin as seen from its launcher: are the paths inside SGLang that it touches as expected?"""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eti_rank.engine import wire
from eti_rank.engine.sglang_local import arguments, forkserver

if TYPE_CHECKING:
    from collections.abc import Callable


def check(parts: Sequence[str]) -> None:
    """Look up what these hooks and parts of the launch touch; imports SGLang.

    Raises:
        HookError: names each path that is not as expected.
    """
    _plugin().check(tuple(parts))


def hook_reports() -> list[Any]:
    """One row (`name`, `path`, `ok`, `detail`) for each path in SGLang that we touch; imports SGLang."""
    with forkserver.environment(arguments.CPU_ENVIRONMENT):
        reports: Callable[[], list[Any]] = _plugin().reports
        return reports()


def _plugin() -> Any:
    return importlib.import_module(wire.PLUGIN_MODULE)
