"""Registers SGLang's own classes of this architecture."""

from sglang.srt.models.llama import EntryClass

__all__ = ["EntryClass"]
