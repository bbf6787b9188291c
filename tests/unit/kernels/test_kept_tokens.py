"""From kept blocks to kept tokens, which every backend plans with."""

import pytest
import torch
from eti_kernels import backends
from eti_kernels.block_sparse_attention import flashinfer
from eti_kernels.block_sparse_attention.kept import kept_tokens, unique_blocks, visible
from eti_kernels.block_sparse_attention.reference import block_sparse_attention


def test_blocks_become_tokens_within_the_row() -> None:
    blocks = unique_blocks(
        torch.tensor([0, 3, 4]), torch.tensor([2, 0, 2, 1]), batch=2, tokens=10, block_tokens=4
    )
    assert blocks.tolist() == [[True, False, True], [False, True, False]]
    found = kept_tokens(blocks, torch.tensor([9, 6]), tokens=10, block_tokens=4)
    assert found.indptr.tolist() == [0, 5, 7]
    assert found.positions.tolist() == [0, 1, 2, 3, 8, 4, 5]
    seen = visible(found, torch.tensor([9, 6]), window=2)
    assert seen.tolist() == [True, True, True, True, False] + [True] * 5 + [True, False, True, True]


@pytest.mark.parametrize(
    ("indptr", "indices", "complaint"),
    [
        ([0, 1], [0, 0], "indptr must rise from 0 to 2 in B"),
        ([0, 2, 1], [0], "indptr must rise"),
        ([0, 1, 2], [0, 3], r"indices must lie in 0\.\.2"),
        ([0, 1, 2], [0, -1], "indices must lie"),
    ],
)
def test_lists_that_make_no_sense(indptr: list[int], indices: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        unique_blocks(torch.tensor(indptr), torch.tensor(indices), batch=2, tokens=10, block_tokens=4)


def test_flashinfer_without_a_device_is_a_clear_error() -> None:
    tensors = [torch.zeros(1, 1, 2, 16, dtype=torch.float16)] * 3
    how = {"indptr": torch.tensor([0, 1]), "indices": torch.tensor([0]), "block_tokens": 4}
    with pytest.raises(RuntimeError, match=r"CUDA devices only.*on cpu"):
        flashinfer.block_sparse_attention(*tensors, torch.tensor([1]), **how)


def test_a_backend_is_what_it_is_called() -> None:
    assert backends.load("block_sparse_attention", "reference") is block_sparse_attention
    assert backends.fitting("cpu") == "reference"
    assert backends.fitting("cuda:1") == "triton"
    with pytest.raises(ValueError, match="no 'row_entropy' in 'flashinfer'"):
        backends.load("row_entropy", "flashinfer")
