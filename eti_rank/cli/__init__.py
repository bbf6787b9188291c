"""The `eti-rank` command."""
