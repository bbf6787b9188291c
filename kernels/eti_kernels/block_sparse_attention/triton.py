"""`block_sparse_attention` in Triton: one program per row and key head, over the blocks that the row keeps.

The queries that share a key head are the rows of one tile, so that a kept block is read once for all of
them. Softmax with running maximum and sum (Milakov and Gimelshein, arXiv 1805.02867); blocks that are left
out are neither read nor computed.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from eti_kernels.block_sparse_attention.kept import unique_blocks
from eti_kernels.block_sparse_attention.reference import SparseAttention

LEAST = 16
"""Smallest side of a tile that the matrix units take."""


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
    """Causal attention over kept blocks; arguments and result as the reference.

    Tensors are float32, float16 or bfloat16, of one type, on a CUDA device (or anywhere in Triton's
    interpreter).

    Raises:
        ValueError: as the reference, or types that differ or are float64.
    """
    batch, window, heads, width = query.shape
    tokens, key_heads, value_width = key.shape[1], key.shape[2], value.shape[3]
    if (
        heads % key_heads
        or key.shape[0] != batch
        or key.shape[3] != width
        or key.shape[:3] != value.shape[:3]
    ):
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit"
        )
    if len({query.dtype, key.dtype, value.dtype}) > 1 or query.dtype == torch.float64:
        raise ValueError(
            f"query, key and value share a type below float64, got {query.dtype}, {key.dtype}, {value.dtype}"
        )
    if bool((lengths < window).any()) or bool((lengths > tokens).any()):
        raise ValueError(f"lengths must lie in W..N = {window}..{tokens}")
    kept = unique_blocks(indptr, indices, batch=batch, tokens=tokens, block_tokens=block_tokens)
    begins = torch.zeros(batch + 1, dtype=torch.int32, device=query.device)
    begins[1:] = kept.sum(1).cumsum(0)
    chosen = kept.nonzero()[:, 1].to(torch.int32)
    output = torch.empty(batch, window, heads, value_width, dtype=query.dtype, device=query.device)
    log_sum_exp = torch.empty(batch, window, heads, dtype=torch.float32, device=query.device)
    group = heads // key_heads
    if batch:
        _attend[batch, key_heads](
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            lengths,
            begins,
            chosen,
            output,
            log_sum_exp,
            width**-0.5 if scale is None else scale,
            window,
            heads,
            group,
            width,
            value_width,
            tokens,
            key_heads,
            block_tokens,
            Q=max(LEAST, triton.next_power_of_2(window * group)),
            KEYS=max(LEAST, triton.next_power_of_2(block_tokens)),
            D=max(LEAST, triton.next_power_of_2(width)),
            DV=max(LEAST, triton.next_power_of_2(value_width)),
        )
    return SparseAttention(output, log_sum_exp)


@triton.jit
def _attend(
    query,
    key,
    value,
    lengths,
    begins,
    chosen,
    output,
    log_sum_exp,
    factor,
    window,
    heads,
    group,
    width,
    value_width,
    tokens,
    key_heads,
    block_tokens,
    Q: tl.constexpr,
    KEYS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
):
    row, key_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(lengths + row).to(tl.int32)
    i, d, dv = tl.arange(0, Q), tl.arange(0, D), tl.arange(0, DV)
    w, head = i // group, key_head * group + i % group
    real = i < window * group
    place = (row * window + w) * heads + head
    q = tl.load(
        query + place[:, None] * width + d[None, :], mask=real[:, None] & (d[None, :] < width), other=0.0
    )
    seen = length - window + w
    m = tl.full([Q], -float("inf"), tl.float32)
    s = tl.zeros([Q], tl.float32)
    total = tl.zeros([Q, DV], tl.float32)
    for number in range(tl.load(begins + row), tl.load(begins + row + 1)):
        n = tl.load(chosen + number) * block_tokens + tl.arange(0, KEYS)
        inside = (tl.arange(0, KEYS) < block_tokens) & (n < length)
        at = (row * tokens + n) * key_heads + key_head
        k = tl.load(
            key + at[None, :] * width + d[:, None], mask=inside[None, :] & (d[:, None] < width), other=0.0
        )
        scores = tl.dot(q, k, input_precision="ieee").to(tl.float32) * factor
        scores = tl.where(inside[None, :] & (n[None, :] <= seen[:, None]), scores, -float("inf"))
        higher = tl.maximum(m, tl.max(scores, 1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        shrink = tl.exp(m - safe)
        p = tl.exp(scores - safe[:, None])
        v = tl.load(
            value + at[:, None] * value_width + dv[None, :],
            mask=inside[:, None] & (dv[None, :] < value_width),
            other=0.0,
        )
        total = total * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee").to(tl.float32)
        s = s * shrink + tl.sum(p, 1)
        m = higher
    some = s > 0
    out = total / tl.where(some, s, 1.0)[:, None]
    tl.store(
        output + place[:, None] * value_width + dv[None, :],
        out,
        mask=real[:, None] & (dv[None, :] < value_width),
    )
    lse = tl.where(some, tl.where(some, m, 0.0) + tl.log(tl.where(some, s, 1.0)), -float("inf"))
    tl.store(log_sum_exp + place, lse, mask=real)
