"""SGLang's own `Engine`, in this process, as an eti-rank engine."""

from eti_rank.engine.sglang_local.engine import SglangLocal
from eti_rank.engine.sglang_local.plugin import hook_reports

__all__ = ["SglangLocal", "hook_reports"]
