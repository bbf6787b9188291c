"""`block_sparse_attention` through FlashInfer's paged wrappers, with pages of one token.

Block sparsity is a shorter index list. One query per row (decoding) takes the decode wrapper; several take
the prefill wrapper with a mask, for a causal mask aligned to the end would be wrong where late blocks are
left out. Needs a CUDA device; unproven until one has run `tests/interpreted/test_flashinfer.py`.
"""

import functools
import importlib
import math
from typing import Any

import torch
from torch import Tensor

from eti_kernels.block_sparse_attention.kept import KeptTokens, kept_tokens, unique_blocks, visible
from eti_kernels.block_sparse_attention.reference import SparseAttention

WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's planner recommends."""
LARGE_GROUP = 4
"""From so many query heads per key head on, decoding uses the matrix units (SGLang's rule too)."""


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

    Raises:
        RuntimeError: no FlashInfer, or tensors that are not on a CUDA device.
        ValueError: float32 or wider tensors, values of another width than keys, or as the reference.
    """
    flashinfer = _available(query.device)
    batch, window, heads, width = query.shape
    tokens, key_heads = key.shape[1:3]
    if heads % key_heads or key.shape[0] != batch or key.shape[3] != width:
        raise ValueError(f"query {tuple(query.shape)} and key {tuple(key.shape)} do not fit")
    if query.dtype not in {torch.float16, torch.bfloat16} or key.shape != value.shape:
        raise ValueError(
            f"FlashInfer takes float16 or bfloat16 and values as wide as keys, got {query.dtype}, "
            f"{tuple(key.shape)} and {tuple(value.shape)}"
        )
    if bool((lengths < window).any()) or bool((lengths > tokens).any()):
        raise ValueError(f"lengths must lie in W..N = {window}..{tokens}")
    blocks = unique_blocks(indptr, indices, batch=batch, tokens=tokens, block_tokens=block_tokens)
    found = kept_tokens(blocks, lengths, tokens=tokens, block_tokens=block_tokens)
    common = {"sm_scale": scale, "q_data_type": query.dtype, "kv_data_type": key.dtype}
    wrapper = _planned(flashinfer, query, key, found, lengths, **common)
    pages = (key.reshape(-1, 1, key_heads, width), value.reshape(-1, 1, key_heads, width))
    output, log2_sum_exp = wrapper.run(query.reshape(-1, heads, width), pages, return_lse=True)
    shape = (batch, window, heads)
    return SparseAttention(output.reshape(*shape, width), log2_sum_exp.reshape(shape) * math.log(2))


def _available(device: torch.device) -> Any:
    if device.type != "cuda":
        raise RuntimeError(f"FlashInfer has kernels for CUDA devices only, and the tensors are on {device}")
    try:
        return importlib.import_module("flashinfer")
    except ImportError as error:
        raise RuntimeError("FlashInfer is not installed: pip install flashinfer-python") from error


@functools.cache
def _workspace(device: torch.device) -> Tensor:
    """Zeroed once and kept, as FlashInfer's documentation asks; calls on one device do not overlap."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _planned(
    flashinfer: Any, query: Tensor, key: Tensor, found: KeptTokens, lengths: Tensor, **common: Any
) -> Any:
    """A wrapper that knows where each row's kept tokens are in the flattened keys."""
    batch, window, heads, width = query.shape
    row = torch.repeat_interleave(torch.arange(batch, device=query.device), found.indptr.diff())
    places = (row * key.shape[1] + found.positions).to(torch.int32)
    full_pages = torch.ones(batch, dtype=torch.int32, device=query.device)
    workspace = _workspace(query.device)
    shape = (heads, key.shape[2], width, 1)
    if window == 1:
        # Groups of query heads that its other decode kernels do not know go to the matrix units.
        on_tensor_cores = heads // key.shape[2] >= LARGE_GROUP
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, use_tensor_cores=on_tensor_cores)
        wrapper.plan(found.indptr, places, full_pages, *shape, **common)
        return wrapper
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
    queries = torch.arange(0, (batch + 1) * window, window, dtype=torch.int32, device=query.device)
    mask = visible(found, lengths, window=window)
    wrapper.plan(queries, found.indptr, places, full_pages, *shape, custom_mask=mask, **common)
    return wrapper
