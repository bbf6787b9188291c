"""`block_contribution` in Triton: no attention matrix is ever stored.

Two kernels. The first finds, for each query and head, the log-sum-exp of its scores over all keys that it
sees, block by block (Milakov and Gimelshein, arXiv 1805.02867). The second, for each block of each row,
computes the scores of its keys again, turns them into attention with that log-sum-exp, and sums them
over queries, heads and tokens.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from eti_kernels.block_contribution.reference import BlockContribution

KEYS = 64
"""Keys of one tile of the first kernel."""
LEAST = 16
"""Smallest side of a tile that the matrix units take."""


def block_contribution(
    query: Tensor,
    key: Tensor,
    lengths: Tensor,
    *,
    block_tokens: int,
    surprisal: Tensor | None = None,
    scale: float | None = None,
) -> BlockContribution:
    """Attention of each row's last W positions to its blocks; arguments and result as the reference.

    Args:
        query: [B, W, Hq, D], float32, float16 or bfloat16, on a CUDA device (or anywhere in Triton's
            interpreter).
        key: [B, N, Hkv, D], of the same type.
        lengths: [B], integer, in W..N.
        block_tokens: tokens per block.
        surprisal: [B, N], >= 0; None counts every token alike.
        scale: of the dot products; None means D ** -0.5.

    Raises:
        ValueError: shapes or types that do not fit, or a length outside W..N.
    """
    batch, window, heads, width = query.shape
    tokens, key_heads = key.shape[1:3]
    if heads % key_heads or key.shape[0] != batch or key.shape[3] != width or block_tokens < 1:
        raise ValueError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} do not fit, or block_tokens < 1"
        )
    if query.dtype != key.dtype or query.dtype == torch.float64:
        raise ValueError(f"query and key share a type below float64, got {query.dtype} and {key.dtype}")
    if bool((lengths < window).any()) or bool((lengths > tokens).any()):
        raise ValueError(f"lengths must lie in W..N = {window}..{tokens}")
    query, key = query.contiguous(), key.contiguous()
    blocks = -(-tokens // block_tokens)
    known = (
        torch.ones(1, 1, dtype=torch.float32, device=query.device)
        if surprisal is None
        else surprisal.to(torch.float32).contiguous()
    )
    log_sum_exp = torch.empty(batch, heads, window, dtype=torch.float32, device=query.device)
    found = torch.empty(2, batch, blocks, dtype=torch.float32, device=query.device)
    sizes = (batch, window, heads, width, tokens, key_heads)
    tiles = {
        "W": max(LEAST, triton.next_power_of_2(window)),
        "D": max(LEAST, triton.next_power_of_2(width)),
    }
    factor = width**-0.5 if scale is None else scale
    if batch:
        _log_sum_exp[batch, heads](query, key, lengths, log_sum_exp, factor, *sizes, KEYS=KEYS, **tiles)
        _contribution[batch, blocks](
            query,
            key,
            lengths,
            log_sum_exp,
            known,
            found,
            factor,
            *sizes,
            block_tokens,
            blocks,
            WEIGHTED=surprisal is not None,
            KEYS=max(LEAST, triton.next_power_of_2(block_tokens)),
            **tiles,
        )
    return BlockContribution(contribution=found[0], mass=found[1])


@triton.jit
def _scores(
    query,
    key,
    row,
    head,
    first,
    end,
    seen,
    factor,
    window,
    heads,
    width,
    tokens,
    key_heads,
    KEYS: tl.constexpr,
    W: tl.constexpr,
    D: tl.constexpr,
):
    """Scores [W, KEYS] of one head for the keys from `first`; -inf from `end` on and past `seen` [W]."""
    w, n, d = tl.arange(0, W), first + tl.arange(0, KEYS), tl.arange(0, D)
    q = tl.load(
        query + ((row * window + w[:, None]) * heads + head) * width + d[None, :],
        mask=(w[:, None] < window) & (d[None, :] < width),
        other=0.0,
    )
    key_head = head // (heads // key_heads)
    k = tl.load(
        key + ((row * tokens + n[None, :]) * key_heads + key_head) * width + d[:, None],
        mask=(n[None, :] < end) & (d[:, None] < width),
        other=0.0,
    )
    scores = tl.dot(q, k, input_precision="ieee").to(tl.float32) * factor
    visible = (n[None, :] <= seen[:, None]) & (n[None, :] < end) & (w[:, None] < window)
    return tl.where(visible, scores, -float("inf"))


@triton.jit
def _log_sum_exp(
    query,
    key,
    lengths,
    found,
    factor,
    batch,
    window,
    heads,
    width,
    tokens,
    key_heads,
    KEYS: tl.constexpr,
    W: tl.constexpr,
    D: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(lengths + row).to(tl.int32)
    w = tl.arange(0, W)
    seen = length - window + w
    m = tl.full([W], -float("inf"), tl.float32)
    s = tl.zeros([W], tl.float32)
    for first in range(0, length, KEYS):
        scores = _scores(
            query,
            key,
            row,
            head,
            first,
            length,
            seen,
            factor,
            window,
            heads,
            width,
            tokens,
            key_heads,
            KEYS,
            W,
            D,
        )
        higher = tl.maximum(m, tl.max(scores, 1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        s = s * tl.exp(m - safe) + tl.sum(tl.exp(scores - safe[:, None]), 1)
        m = higher
    # rows of padding have seen nothing
    tl.store(found + (row * heads + head) * window + w, m + tl.log(tl.where(s > 0, s, 1.0)), mask=w < window)


@triton.jit
def _contribution(
    query,
    key,
    lengths,
    log_sum_exp,
    surprisal,
    found,
    factor,
    batch,
    window,
    heads,
    width,
    tokens,
    key_heads,
    block_tokens,
    blocks,
    WEIGHTED: tl.constexpr,
    KEYS: tl.constexpr,
    W: tl.constexpr,
    D: tl.constexpr,
):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(lengths + row).to(tl.int32)
    first = block * block_tokens
    end = tl.minimum(first + block_tokens, length)
    w, n = tl.arange(0, W), first + tl.arange(0, KEYS)
    seen = length - window + w
    attention = tl.zeros([KEYS], tl.float32)
    if first < length:
        for head in range(heads):
            scores = _scores(
                query,
                key,
                row,
                head,
                first,
                end,
                seen,
                factor,
                window,
                heads,
                width,
                tokens,
                key_heads,
                KEYS,
                W,
                D,
            )
            total = tl.load(log_sum_exp + (row * heads + head) * window + w, mask=w < window, other=0.0)
            attention += tl.sum(tl.exp(scores - total[:, None]), 0)
    attention = attention / (heads * window)
    weighted = attention
    if WEIGHTED:
        # padding may hold anything, NaN included: it is not loaded
        weighted = attention * tl.load(surprisal + row * tokens + n, mask=n < end, other=0.0)
    tl.store(found + row * blocks + block, tl.sum(weighted, 0))
    tl.store(found + batch * blocks + row * blocks + block, tl.sum(attention, 0))
