"""Attention over the kept blocks of context alone."""
