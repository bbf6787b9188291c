"""Serves the scripted engine as a process of its own: ``python scripted_server.py TOKEN_S START_S``."""

import sys

from eti_rank.engine.scripted import Scripted
from eti_rank.service.backend import assemble
from eti_rank.service.logs import configure_logs
from eti_rank.service.server import serve
from eti_rank.settings import load_settings
from tests.rerank_double import DoubleModel, scripted_logprobs

if __name__ == "__main__":
    token_s, start_s = map(float, sys.argv[1:])
    settings = load_settings()
    configure_logs(settings.service.log_level)
    backend = assemble(
        settings,
        DoubleModel(),
        lambda: Scripted(
            settings.engine, "double", 4096, logprobs=scripted_logprobs, token_s=token_s, start_s=start_s
        ),
    )
    serve(settings, backend)
