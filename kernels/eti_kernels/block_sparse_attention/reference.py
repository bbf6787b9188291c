"""The oracle of `block_sparse_attention`: dense attention with everything masked that was not kept."""

from typing import NamedTuple

import torch
from torch import Tensor

from eti_kernels.block_sparse_attention.kept import unique_blocks


class SparseAttention(NamedTuple):
    """What a sparse attention returns."""

    output: Tensor
    """[B, W, Hq, Dv], of the queries' type; 0 where a query sees no kept key."""
    log_sum_exp: Tensor
    """[B, W, Hq], natural logarithm over the kept keys, -inf without any; float32, or float64 for float64."""


def block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    *,
    indptr: Tensor,
    indices: Tensor,
    block_tokens: int,
    scale: float | None = None,
) -> SparseAttention:
    """Causal attention of the last W positions of each row over the row's kept blocks.

    Args:
        query: [B, W, Hq, D]; query w of row i stands at position lengths[i] - W + w, sees keys up to there.
        key: [B, N, Hkv, D]; positions from lengths[i] on are padding. Hkv divides Hq: head h reads key head
            h // (Hq / Hkv).
        value: [B, N, Hkv, Dv]; padding must be finite.
        lengths: [B], integer, in W..N.
        indptr: [B + 1], integer: row i keeps blocks indices[indptr[i] : indptr[i + 1]].
        indices: [kept blocks], integer, counted from the row's own first block; repeated ones count once.
        block_tokens: tokens per block; the last block may be partial.
        scale: of the dot products; None means D ** -0.5.

    Raises:
        ValueError: shapes that do not fit, a length outside W..N, or a block that does not exist.
    """
    batch, window, heads, width = query.shape
    tokens, key_heads = key.shape[1:3]
    if (
        heads % key_heads
        or key.shape[0] != batch
        or key.shape[3] != width
        or key.shape[:3] != value.shape[:3]
    ):
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit"
        )
    if bool((lengths < window).any()) or bool((lengths > tokens).any()):
        raise ValueError(f"lengths must lie in W..N = {window}..{tokens}")
    blocks = unique_blocks(indptr, indices, batch=batch, tokens=tokens, block_tokens=block_tokens)
    kept = blocks.repeat_interleave(block_tokens, dim=1)[:, :tokens]  # [B, N]
    place = lengths[:, None] - window + torch.arange(window, device=query.device)  # [B, W]
    visible = torch.arange(tokens, device=query.device) <= place[:, :, None]  # [B, W, N]
    hidden = ~(visible & kept[:, None, :])[:, None]  # [B, 1, W, N]

    wide = torch.promote_types(query.dtype, torch.float32)
    group = heads // key_heads
    shared_key = key.to(wide).repeat_interleave(group, dim=2)  # [B, N, Hq, D]
    shared_value = value.to(wide).repeat_interleave(group, dim=2)  # [B, N, Hq, Dv]
    scores = torch.einsum("bwhd,bnhd->bhwn", query.to(wide), shared_key)
    scores = scores * (width**-0.5 if scale is None else scale)
    scores = scores.masked_fill(hidden, float("-inf"))
    log_sum_exp = scores.logsumexp(-1)  # [B, Hq, W]
    attention = scores.softmax(-1).masked_fill(hidden, 0.0)  # a row without keys is NaN before, 0 after
    output = torch.einsum("bhwn,bnhd->bwhd", attention, shared_value)
    return SparseAttention(output.to(query.dtype), log_sum_exp.transpose(1, 2))
