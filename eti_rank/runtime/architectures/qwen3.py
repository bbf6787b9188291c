"""Registers SGLang's own classes of this architecture."""

from sglang.srt.models.qwen3 import EntryClass

__all__ = ["EntryClass"]
