"""Registers SGLang's own classes of this architecture."""

from sglang.srt.models.gemma import EntryClass

__all__ = ["EntryClass"]
