"""The seam to a runtime: one protocol, several engines."""
