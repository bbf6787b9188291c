"""Imported by the fork server, and only there; importing is its whole effect.

Loads what the scheduler and the detokenizer will need, so that they start with it.
"""

import atexit
import os

from eti_rank.engine.sglang_local import lean

with lean.imports():
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.model_executor.model_runner
    import sglang.srt.models.registry  # noqa: F401

# The server process ends without the interpreter's farewell: the libraries' own checks at that point
# print hundreds of lines about objects that end with the process anyway.
atexit.register(os._exit, 0)
