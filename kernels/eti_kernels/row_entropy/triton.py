"""`row_entropy` in Triton: one pass over the vocabulary per row, whatever its size.

Running sums over blocks of logits, each relative to the largest logit so far, m (Milakov and Gimelshein,
arXiv 1805.02867, extended from the sum to two moments). With x = z / T - m:

    s = sum e^x        t = sum x e^x        u = sum x^2 e^x
    lse = m + ln s     H = ln s - t / s     V = u / s - (t / s)^2

When m rises by d, x falls by d everywhere, so  u <- e^-d (u - 2 d t + d^2 s),  t <- e^-d (t - d s),
s <- e^-d s. The k largest logits are kept beside them, and merged with those of each block.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from eti_kernels.row_entropy.reference import RowEntropy

MAX_K = 64
"""Largest k: the k largest logits of a row stay in registers."""
BLOCK_TOKENS = 2048


def row_entropy(logits: Tensor, *, k: int, temperature: Tensor | float = 1.0) -> RowEntropy:
    """Statistics of softmax(logits / temperature); arguments and result as the reference, in float32.

    Args:
        logits: [..., V], float32, float16 or bfloat16, on a CUDA device (or anywhere in the interpreter);
            -inf marks a token that cannot come, each row has a finite logit.
        k: 1..min(V, MAX_K).
        temperature: a number or [...], > 0.

    Raises:
        ValueError: k outside its range, or float64 logits.
    """
    vocabulary = logits.shape[-1]
    if not 1 <= k <= min(vocabulary, MAX_K):
        raise ValueError(f"k must lie in 1..{min(vocabulary, MAX_K)} (V = {vocabulary}), got {k}")
    if logits.dtype == torch.float64:
        raise ValueError("float64 logits: use the reference")
    rows = logits.reshape(-1, vocabulary)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    batch = logits.shape[:-1]
    heat = torch.as_tensor(temperature, dtype=torch.float32, device=logits.device).expand(batch)
    found = torch.empty(4, rows.shape[0], dtype=torch.float32, device=logits.device)
    if rows.shape[0]:
        kept = triton.next_power_of_2(k)
        block = max(kept, min(BLOCK_TOKENS, triton.next_power_of_2(vocabulary)))
        _row_entropy[rows.shape[0],](
            rows,
            heat.reshape(-1).contiguous(),
            found,
            rows.stride(0),
            rows.shape[0],
            vocabulary,
            K=k,
            KEPT=kept,
            BLOCK=block,
        )
    return RowEntropy(*(field.reshape(batch) for field in found))


@triton.jit
def _row_entropy(
    logits, heat, found, stride, rows, vocabulary, K: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    inverse = 1.0 / tl.load(heat + row)
    begin = logits + row.to(tl.int64) * stride
    place = tl.arange(0, BLOCK)
    m = -float("inf")
    s, t, u = 0.0, 0.0, 0.0
    top = tl.full([KEPT], -float("inf"), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        inside = first + place < vocabulary
        z = tl.load(begin + first + place, mask=inside, other=-float("inf")).to(tl.float32) * inverse
        if K > 1:
            # both sorted: the larger half of one merge is the head so far
            head = tl.topk(z, KEPT)
            top = tl.topk(tl.reshape(tl.join(top, head), [2 * KEPT]), KEPT)
        higher = tl.maximum(m, tl.max(z, 0))
        if higher > -float("inf"):
            rise = tl.where(m == -float("inf"), 0.0, higher - m)
            shrink = tl.where(m == -float("inf"), 0.0, tl.exp(-rise))
            # what has shrunk to nothing is nothing: 0 times the square of a huge rise would be NaN
            rise = tl.where(shrink == 0.0, 0.0, rise)
            u = shrink * (u - 2.0 * rise * t + rise * rise * s)
            t = shrink * (t - rise * s)
            s = shrink * s
            x = tl.where(z == -float("inf"), 0.0, z - higher)
            e = tl.where(z == -float("inf"), 0.0, tl.exp(x))
            x = tl.where(e == 0.0, 0.0, x)  # as for a rise: masks of the smallest float are common
            s += tl.sum(e, 0)
            t += tl.sum(x * e, 0)
            u += tl.sum(x * x * e, 0)
            m = higher
    mean = t / s
    log_s = tl.log(s)
    if K > 1:
        # sorted downwards: the first K of the KEPT
        weights = tl.where(tl.arange(0, KEPT) < K, tl.exp(top - m), 0.0)
        mass = tl.sum(weights, 0) / s
    else:
        mass = 1.0 / s
    tl.store(found + row, tl.maximum(log_s - mean, 0.0))
    tl.store(found + rows + row, tl.maximum(u / s - mean * mean, 0.0))
    tl.store(found + 2 * rows + row, m + log_s)
    tl.store(found + 3 * rows + row, tl.minimum(mass, 1.0))
