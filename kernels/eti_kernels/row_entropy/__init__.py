"""Entropy, varentropy, log-sum-exp and top-k mass of rows of logits, in one call."""
