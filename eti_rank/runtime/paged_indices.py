"""From the index list of a whole batch to that of what its rows keep; plain torch, on any device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eti_rank.runtime.pruning import Positions


@dataclass(frozen=True, slots=True, eq=False)
class PagedIndices:
    """KV of a batch in pages of one token: row i attends to `kv_indices[kv_indptr[i] : kv_indptr[i + 1]]`.

    SGLang's planner takes both tensors from any `spec_info` that carries them, in place of its own.
    """

    kv_indptr: Tensor
    """[B + 1], int32, on the device."""
    kv_indices: Tensor
    """[kept tokens of all rows], of the type that came in."""
    lengths: Tensor
    """[B], int32, in host memory: tokens that each row keeps."""


def compact(contexts: Sequence[int], indices: Tensor, kept: Sequence[Positions | None]) -> PagedIndices:
    """Drop from the index list of a batch what its rows leave out.

    Args:
        contexts: [B], tokens in each row's context.
        indices: [total of contexts], places in the KV pool, row after row.
        kept: per row, positions in its context, ascending; None keeps the row whole.

    Raises:
        ValueError: other lengths, or a position outside its row.
    """
    begins = np.concatenate([[0], np.cumsum(contexts)])
    if len(kept) != len(contexts) or len(indices) != begins[-1]:
        raise ValueError(
            f"{len(contexts)} rows of {begins[-1]} tokens, but {len(kept)} lists and {len(indices)} indices"
        )
    chosen = [
        np.arange(context) if positions is None else positions
        for context, positions in zip(contexts, kept, strict=True)
    ]
    for row, (context, positions) in enumerate(zip(contexts, chosen, strict=True)):
        if len(positions) and not 0 <= positions[0] <= positions[-1] < context:
            raise ValueError(f"row {row} has {context} tokens, and keeps {positions[0]} to {positions[-1]}")
    flat = np.concatenate([begin + one for begin, one in zip(begins, chosen, strict=False)])
    lengths = torch.tensor([len(one) for one in chosen], dtype=torch.int32)
    indptr = torch.zeros(len(contexts) + 1, dtype=torch.int32)
    indptr[1:] = torch.cumsum(lengths, dim=0)
    where = torch.from_numpy(flat).to(indices.device)
    return PagedIndices(
        kv_indptr=indptr.to(indices.device), kv_indices=indices.index_select(0, where), lengths=lengths
    )
