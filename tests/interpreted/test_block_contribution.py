import pytest
import torch
from eti_kernels.block_contribution import reference
from eti_kernels.block_contribution.triton import block_contribution

from tests.interpreted.conftest import DEVICE, assert_close

SHAPES = [
    pytest.param(2, 1, (4, 2), 16, 50, 16, id="decode"),
    pytest.param(3, 5, (2, 1), 20, 33, 7, id="odd-everything"),
    pytest.param(1, 32, (9, 3), 64, 130, 16, id="smollm2"),
    pytest.param(2, 3, (4, 4), 8, 40, 64, id="one-block"),
    pytest.param(2, 2, (2, 2), 128, 70, 1, id="block-of-one"),
]


@pytest.mark.parametrize(("rows", "window", "heads", "width", "tokens", "block"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_reference(
    rows: int,
    window: int,
    heads: tuple[int, int],
    width: int,
    tokens: int,
    block: int,
    dtype: torch.dtype,
    weighted: bool,
) -> None:
    generator = torch.Generator().manual_seed(tokens)
    query = torch.randn(rows, window, heads[0], width, generator=generator).to(dtype).to(DEVICE)
    key = torch.randn(rows, tokens, heads[1], width, generator=generator).to(dtype).to(DEVICE)
    lengths = torch.randint(window, tokens + 1, (rows,), generator=generator).to(DEVICE)
    surprisal = torch.rand(rows, tokens, generator=generator).mul(9).to(DEVICE) if weighted else None
    ours = block_contribution(query, key, lengths, block_tokens=block, surprisal=surprisal)
    theirs = reference.block_contribution(query, key, lengths, block_tokens=block, surprisal=surprisal)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, dtype)
    torch.testing.assert_close(ours.mass.sum(-1), torch.ones(rows, device=DEVICE))


def test_padding_may_hold_anything_in_surprisal() -> None:
    query, key = torch.randn(1, 1, 2, 16, device=DEVICE), torch.randn(1, 40, 2, 16, device=DEVICE)
    lengths = torch.tensor([20], device=DEVICE)
    surprisal = torch.ones(1, 40, device=DEVICE)
    surprisal[0, 20:] = float("nan")
    found = block_contribution(query, key, lengths, block_tokens=16, surprisal=surprisal)
    assert found.contribution[0].tolist() == pytest.approx(found.mass[0].tolist(), abs=1e-6)
    assert found.mass[0, 2] == 0


def test_what_does_not_fit() -> None:
    query, key = torch.randn(1, 4, 2, 16, device=DEVICE), torch.randn(1, 40, 2, 16, device=DEVICE)
    with pytest.raises(ValueError, match="lengths"):
        block_contribution(query, key, torch.tensor([3], device=DEVICE), block_tokens=8)
    with pytest.raises(ValueError, match="do not fit"):
        block_contribution(query, key[..., :8], torch.tensor([9], device=DEVICE), block_tokens=8)
    with pytest.raises(ValueError, match="type"):
        block_contribution(query.half(), key, torch.tensor([9], device=DEVICE), block_tokens=8)
