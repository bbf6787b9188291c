"""From lists of kept blocks to lists of kept tokens; plain torch, on any device."""

from typing import NamedTuple

import torch
from torch import Tensor


class KeptTokens(NamedTuple):
    """Rows of ascending token positions: row i keeps `positions[indptr[i] : indptr[i + 1]]`."""

    indptr: Tensor
    """[B + 1], int32."""
    positions: Tensor
    """[kept tokens], int32; below the row's length."""


def unique_blocks(
    indptr: Tensor, indices: Tensor, *, batch: int, tokens: int, block_tokens: int
) -> Tensor:  # [B, blocks], bool
    """Which blocks each row keeps; a repeated index counts once.

    Raises:
        ValueError: `indptr` does not rise from 0 to the number of indices, or a block does not exist.
    """
    blocks = -(-tokens // block_tokens)
    counts = indptr.diff()
    if (
        len(indptr) != batch + 1
        or bool((counts < 0).any())
        or (int(indptr[0]), int(indptr[-1]))
        != (
            0,
            len(indices),
        )
    ):
        raise ValueError(f"indptr must rise from 0 to {len(indices)} in B + 1 = {batch + 1} steps")
    if bool((indices < 0).any()) or bool((indices >= blocks).any()):
        raise ValueError(f"indices must lie in 0..{blocks - 1}")
    kept = torch.zeros(batch, blocks, dtype=torch.bool, device=indices.device)
    row = torch.repeat_interleave(torch.arange(batch, device=indices.device), counts)
    kept[row, indices.long()] = True
    return kept


def kept_tokens(kept_blocks: Tensor, lengths: Tensor, *, tokens: int, block_tokens: int) -> KeptTokens:
    """Positions of the kept blocks' tokens that lie within each row.

    Args:
        kept_blocks: [B, blocks], bool.
        lengths: [B], integer.
        tokens: N.
        block_tokens: tokens per block.
    """
    kept = kept_blocks.repeat_interleave(block_tokens, dim=1)[:, :tokens]
    kept = kept & (torch.arange(tokens, device=kept.device) < lengths[:, None])
    indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=kept.device)
    indptr[1:] = kept.sum(1).cumsum(0)
    return KeptTokens(indptr, kept.nonzero()[:, 1].to(torch.int32))


def visible(found: KeptTokens, lengths: Tensor, *, window: int) -> Tensor:
    """Whether each query sees each kept token of its row, bool; rows of [W, kept tokens], flattened."""
    per_row = torch.split(found.positions, found.indptr.diff().tolist())
    place = lengths[:, None] - window + torch.arange(window, device=lengths.device)  # [B, W]
    pieces = [positions <= place[row, :, None] for row, positions in enumerate(per_row)]
    return torch.cat([piece.reshape(-1) for piece in pieces]) if pieces else torch.zeros(0, dtype=torch.bool)
