"""The oracle of `block_contribution`: the whole attention matrix, then sums over blocks.

Formulas as in eti-rank's `control/pruning.py`, against which it is tested in float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class BlockContribution(NamedTuple):
    """Both [B, ceil(N / block_tokens)], float32, or float64 for float64 queries; padding is 0."""

    contribution: Tensor
    """I_b = sum over the block of attention x surprisal."""
    mass: Tensor
    """Attention that the block receives; a row totals 1."""


def block_contribution(
    query: Tensor,
    key: Tensor,
    lengths: Tensor,
    *,
    block_tokens: int,
    surprisal: Tensor | None = None,
    scale: float | None = None,
) -> BlockContribution:
    """Attention of each row's last W positions to its blocks, averaged over positions and heads.

    Args:
        query: [B, W, Hq, D]; query w of row i stands at position lengths[i] - W + w, sees keys up to there.
        key: [B, N, Hkv, D]; positions from lengths[i] on are padding. Hkv divides Hq: head h reads key head
            h // (Hq / Hkv).
        lengths: [B], integer, in W..N.
        block_tokens: tokens per block; the last block may be partial.
        surprisal: [B, N], >= 0, `-ln p` of each token; None counts every token alike.
        scale: of the dot products; None means D ** -0.5.

    Raises:
        ValueError: shapes that do not fit, or a length outside W..N.
    """
    batch, window, heads, width = query.shape
    tokens, key_heads = key.shape[1:3]
    if heads % key_heads or key.shape[0] != batch or key.shape[3] != width or block_tokens < 1:
        raise ValueError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} do not fit, or block_tokens < 1"
        )
    if bool((lengths < window).any()) or bool((lengths > tokens).any()):
        raise ValueError(f"lengths must lie in W..N = {window}..{tokens}")
    wide = torch.promote_types(query.dtype, torch.float32)
    shared_key = key.to(wide).repeat_interleave(heads // key_heads, dim=2)  # [B, N, Hq, D]
    scores = torch.einsum("bwhd,bnhd->bhwn", query.to(wide), shared_key)
    scores = scores * (width**-0.5 if scale is None else scale)
    place = lengths[:, None] - window + torch.arange(window, device=query.device)  # [B, W]
    visible = torch.arange(tokens, device=query.device) <= place[:, :, None]  # [B, W, N]
    attention = scores.masked_fill(~visible[:, None], float("-inf")).softmax(-1).mean(dim=(1, 2))  # [B, N]
    mass = _sum_blocks(attention, block_tokens)
    if surprisal is None:
        return BlockContribution(mass, mass)
    # padding may hold anything, NaN included
    known = surprisal.to(wide).masked_fill(~visible[:, -1], 0.0)
    return BlockContribution(_sum_blocks(attention * known, block_tokens), mass)


def _sum_blocks(values: Tensor, block_tokens: int) -> Tensor:
    padded = functional.pad(values, (0, -values.shape[-1] % block_tokens))
    return padded.reshape(*values.shape[:-1], -1, block_tokens).sum(-1)
