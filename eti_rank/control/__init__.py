"""The laws: pure numpy, no engine."""
