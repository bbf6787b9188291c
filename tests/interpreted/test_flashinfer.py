"""FlashInfer against the reference, on a CUDA device; what plans its kernels is tested anywhere."""

import pytest
import torch
from eti_kernels.block_sparse_attention import reference
from eti_kernels.block_sparse_attention.flashinfer import block_sparse_attention

from tests.interpreted.conftest import DEVICE, assert_close


@pytest.mark.skipif(DEVICE != "cuda", reason="FlashInfer needs a CUDA device")
@pytest.mark.parametrize("window", [1, 5])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
def test_equals_the_reference(window: int, heads: tuple[int, int]) -> None:
    torch.manual_seed(0)
    query = torch.randn(3, window, heads[0], 64, device=DEVICE, dtype=torch.float16)
    key, value = torch.randn(2, 3, 300, heads[1], 64, device=DEVICE, dtype=torch.float16)
    lengths = torch.tensor([300, 17, 160], device=DEVICE)
    indptr = torch.tensor([0, 5, 7, 12], dtype=torch.int32, device=DEVICE)
    indices = torch.tensor([0, 3, 9, 17, 18, 0, 1, 0, 2, 4, 8, 9], dtype=torch.int32, device=DEVICE)
    how = {"indptr": indptr, "indices": indices, "block_tokens": 16}
    ours = block_sparse_attention(query, key, value, lengths, **how)
    theirs = reference.block_sparse_attention(query, key, value, lengths, **how)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, torch.float16)
