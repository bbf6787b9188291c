import pytest
import torch
from eti_kernels.block_sparse_attention import reference
from eti_kernels.block_sparse_attention.triton import block_sparse_attention
from torch import Tensor

from tests.interpreted.conftest import DEVICE, assert_close

SHAPES = [
    pytest.param(2, 1, (4, 2), (16, 16), 50, 16, id="decode"),
    pytest.param(3, 5, (2, 1), (20, 12), 33, 7, id="odd-everything"),
    pytest.param(1, 8, (9, 3), (64, 64), 130, 16, id="smollm2"),
    pytest.param(2, 3, (4, 4), (8, 40), 40, 64, id="one-block"),
]


def kept(rows: int, blocks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some blocks of each row, in any order, some of them twice, and none of the last row's."""
    lists = [torch.randint(0, blocks, (blocks,), generator=generator) for _ in range(rows - 1)]
    lists.append(torch.zeros(0, dtype=torch.int64))
    indptr = torch.tensor([0, *torch.tensor([len(one) for one in lists]).cumsum(0).tolist()])
    return indptr.to(torch.int32).to(DEVICE), torch.cat(lists).to(torch.int32).to(DEVICE)


@pytest.mark.parametrize(("rows", "window", "heads", "widths", "tokens", "block"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("everything", [False, True])
def test_equals_the_reference(
    rows: int,
    window: int,
    heads: tuple[int, int],
    widths: tuple[int, int],
    tokens: int,
    block: int,
    dtype: torch.dtype,
    everything: bool,
) -> None:
    generator = torch.Generator().manual_seed(tokens)
    query = torch.randn(rows, window, heads[0], widths[0], generator=generator).to(dtype).to(DEVICE)
    key = torch.randn(rows, tokens, heads[1], widths[0], generator=generator).to(dtype).to(DEVICE)
    value = torch.randn(rows, tokens, heads[1], widths[1], generator=generator).to(dtype).to(DEVICE)
    lengths = torch.randint(window, tokens + 1, (rows,), generator=generator).to(DEVICE)
    blocks = -(-tokens // block)
    if everything:
        indptr = torch.arange(0, (rows + 1) * blocks, blocks, dtype=torch.int32, device=DEVICE)
        indices = torch.arange(blocks, dtype=torch.int32, device=DEVICE).repeat(rows)
    else:
        indptr, indices = kept(rows, blocks, generator)
    how = {"indptr": indptr, "indices": indices, "block_tokens": block}
    ours = block_sparse_attention(query, key, value, lengths, **how)
    theirs = reference.block_sparse_attention(query, key, value, lengths, **how)
    assert ours.output.dtype == dtype
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, dtype)


def test_a_row_that_keeps_nothing_gives_zero() -> None:
    query, key = torch.randn(1, 1, 2, 16, device=DEVICE), torch.randn(1, 40, 2, 16, device=DEVICE)
    nothing = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    found = block_sparse_attention(
        query,
        key,
        key,
        torch.tensor([40], device=DEVICE),
        indptr=torch.zeros(2, dtype=torch.int32, device=DEVICE),
        indices=nothing,
        block_tokens=8,
    )
    assert (found.output == 0).all()
    assert (found.log_sum_exp == -torch.inf).all()
