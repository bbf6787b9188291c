"""The oracle of `row_entropy`: plain torch, one step per line.

Formulas as in eti-rank's `control/entropy.py`, against which it is tested in float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class RowEntropy(NamedTuple):
    """All fields have the batch's shape [...], float32, or float64 for float64 logits."""

    entropy: Tensor
    """H = -sum p ln p, nats."""
    varentropy: Tensor
    """V = sum p (ln p + H)^2 = dH / d ln T, nats^2."""
    log_sum_exp: Tensor
    """ln sum exp(z / T), nats."""
    top_k_mass: Tensor
    """Total probability of the k most probable tokens."""


def row_entropy(logits: Tensor, *, k: int, temperature: Tensor | float = 1.0) -> RowEntropy:
    """Statistics of softmax(logits / temperature).

    Args:
        logits: [..., V], any floating type; -inf marks a token that cannot come, each row has a finite logit.
        k: 1..V; k = V gives a top-k mass of 1.
        temperature: a number or [...], > 0.

    Raises:
        ValueError: k outside 1..V.
    """
    vocabulary = logits.shape[-1]
    if not 1 <= k <= vocabulary:
        raise ValueError(f"k must lie in 1..V = {vocabulary}, got {k}")
    wide = torch.promote_types(logits.dtype, torch.float32)
    heat = torch.as_tensor(temperature, dtype=wide, device=logits.device)
    scaled = logits.to(wide) / heat[..., None]
    log_sum_exp = scaled.logsumexp(-1)
    log_p = scaled - log_sum_exp[..., None]  # [..., V]
    p = log_p.exp()
    log_p = log_p.masked_fill(p == 0, 0.0)  # 0 ln 0 = 0
    entropy = -(p * log_p).sum(-1)
    varentropy = (p * (log_p + entropy[..., None]) ** 2).sum(-1)
    top_k_mass = p.topk(k, -1).values.sum(-1)
    return RowEntropy(entropy.clamp(min=0), varentropy, log_sum_exp, top_k_mass.clamp(max=1))
