import math

import pytest
import torch
from eti_kernels.row_entropy import reference
from eti_kernels.row_entropy.triton import BLOCK_TOKENS, MAX_K, row_entropy

from tests.interpreted.conftest import DEVICE, assert_close

SIZES = [1, 2, 7, 100, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 2 * BLOCK_TOKENS + 77]


def logits(*shape: int, spread: float = 4.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * spread).to(dtype).to(DEVICE)


@pytest.mark.parametrize(
    ("vocabulary", "k"), [*((size, k) for size in SIZES for k in (1, 2)), (100, 5), (100, MAX_K)]
)
def test_odd_sizes(vocabulary: int, k: int) -> None:
    rows = logits(3, vocabulary)
    k = min(k, vocabulary)
    for ours, theirs in zip(row_entropy(rows, k=k), reference.row_entropy(rows, k=k), strict=True):
        assert_close(ours, theirs, rows.dtype)


@pytest.mark.parametrize("batch", [(), (0,), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_batches_types_and_temperatures(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    rows = logits(*batch, 300, dtype=dtype)
    heat = torch.linspace(0.3, 2.0, max(1, math.prod(batch)), device=DEVICE)[: math.prod(batch)].reshape(
        batch
    )
    ours = row_entropy(rows, k=4, temperature=heat)
    theirs = reference.row_entropy(rows, k=4, temperature=heat)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == batch
        assert_close(one, other, torch.float32)  # both widen first


def test_forbidden_tokens_and_certain_rows() -> None:
    rows = torch.full((3, 5000), -math.inf, device=DEVICE)
    rows[0, 4321] = 5.0  # one possible token, in the last block
    rows[1, :] = 2.0
    rows[2, ::3] = logits(1667)
    for k in (1, 4):
        ours, theirs = row_entropy(rows, k=k), reference.row_entropy(rows, k=k)
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, torch.float32)
    assert ours.entropy[0] == 0
    assert ours.entropy[1].item() == pytest.approx(math.log(5000), abs=1e-4)


@pytest.mark.parametrize("allowed", [slice(0, 5), slice(4321, 4323)], ids=["first-block", "last-block"])
def test_a_mask_of_the_smallest_float_is_a_mask(allowed: slice) -> None:
    rows = torch.full((1, 5000), torch.finfo(torch.float32).min, device=DEVICE)
    rows[0, allowed] = torch.arange(rows[0, allowed].numel(), dtype=torch.float32, device=DEVICE)
    for ours, theirs in zip(row_entropy(rows, k=1), reference.row_entropy(rows, k=1), strict=True):
        assert_close(ours, theirs, torch.float32)


def test_rows_that_do_not_lie_side_by_side() -> None:
    table = logits(6, 4000)
    for view in (table[::2], table[:, ::2], table.T.contiguous().T):
        for ours, theirs in zip(row_entropy(view, k=3), reference.row_entropy(view, k=3), strict=True):
            assert_close(ours, theirs, torch.float32)


def test_large_logits_do_not_overflow() -> None:
    rows = logits(2, 4000, spread=1e4)
    for ours, theirs in zip(row_entropy(rows, k=3), reference.row_entropy(rows, k=3), strict=True):
        assert torch.isfinite(ours).all()
        assert_close(ours, theirs, torch.float32)


@pytest.mark.parametrize(("vocabulary", "k"), [(10, 0), (10, 11), (1000, MAX_K + 1)])
def test_k_outside_its_range(vocabulary: int, k: int) -> None:
    with pytest.raises(ValueError, match="k must lie in"):
        row_entropy(logits(2, vocabulary), k=k)


def test_float64_is_the_references() -> None:
    with pytest.raises(ValueError, match="float64"):
        row_entropy(logits(2, 10, dtype=torch.float64), k=1)
