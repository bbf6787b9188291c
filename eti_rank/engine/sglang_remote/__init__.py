"""SGLang servers over HTTP, each with our plugin, as one eti-rank engine."""

from eti_rank.engine.sglang_remote.engine import SglangRemote

__all__ = ["SglangRemote"]
