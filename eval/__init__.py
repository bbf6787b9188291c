"""Studies: what eti-rank claims, measured."""
