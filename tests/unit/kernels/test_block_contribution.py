import math

import numpy as np
import pytest
import torch
from eti_kernels.block_contribution.reference import block_contribution
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eti_rank.control import pruning as law

laws = settings(deadline=None, derandomize=True, max_examples=60)
FLOAT64 = 1e-12


def one_row(query: NDArray[np.float64], key: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """[N]: attention of one row, position by position and head by head."""
    window, heads, width = query.shape
    total = np.zeros(len(key))
    for place in range(window):
        for head in range(heads):
            seen = length - window + place + 1
            scores = key[:seen, head // (heads // key.shape[1])] @ query[place, head] / math.sqrt(width)
            weights = np.exp(scores - scores.max())
            total[:seen] += weights / weights.sum()
    return total / (window * heads)


@laws
@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 60),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    st.integers(1, 17),
    st.booleans(),
)
def test_equals_the_law_in_float64(
    seed: int, rows: int, window: int, more: int, heads: tuple[int, int], block_tokens: int, surprising: bool
) -> None:
    rng = np.random.default_rng(seed)
    tokens = window + more
    query = rng.normal(0, 2, (rows, window, heads[0], 8))
    key = rng.normal(0, 2, (rows, tokens, heads[1], 8))
    lengths = rng.integers(window, tokens + 1, rows)
    surprisal = rng.exponential(2, (rows, tokens))
    attention = np.array([one_row(*row) for row in zip(query, key, lengths, strict=True)])
    expected = law.block_contribution(attention, surprisal if surprising else None, block_tokens=block_tokens)
    padding = np.arange(tokens) >= lengths[:, None]
    found = block_contribution(
        torch.as_tensor(query),
        torch.as_tensor(key),
        torch.as_tensor(lengths),
        block_tokens=block_tokens,
        surprisal=torch.as_tensor(np.where(padding, np.nan, surprisal)) if surprising else None,
    )
    np.testing.assert_allclose(found.mass.numpy(), expected.mass, atol=FLOAT64)
    np.testing.assert_allclose(found.contribution.numpy(), expected.contribution, atol=1e-10)


def random_case(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, 4, 16, generator=generator).to(dtype)
    key = torch.randn(2, 37, 2, 16, generator=generator).to(dtype)
    return query, key, torch.tensor([37, 20])


def test_surprisal_one_and_no_surprisal_are_the_mass_and_one_block_holds_all() -> None:
    query, key, lengths = random_case(torch.float64)
    plain = block_contribution(query, key, lengths, block_tokens=8)
    ones = block_contribution(query, key, lengths, block_tokens=8, surprisal=torch.ones(2, 37))
    torch.testing.assert_close(plain.contribution, plain.mass, rtol=0, atol=0)
    torch.testing.assert_close(ones.contribution, plain.mass)
    torch.testing.assert_close(plain.mass.sum(-1), torch.ones(2, dtype=torch.float64))
    whole = block_contribution(query, key, lengths, block_tokens=64)
    torch.testing.assert_close(whole.mass, torch.ones(2, 1, dtype=torch.float64))
    assert plain.mass[1, 3:].eq(0).all()


def test_equal_keys_share_attention_by_tokens() -> None:
    query, key, _ = random_case(torch.float64)
    found = block_contribution(query[:, -1:], torch.ones_like(key), torch.tensor([37, 20]), block_tokens=16)
    expected = torch.tensor([[16 / 37, 16 / 37, 5 / 37], [16 / 20, 4 / 20, 0]], dtype=torch.float64)
    torch.testing.assert_close(found.mass, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types_are_widened_before_the_dot_product(dtype: torch.dtype) -> None:
    query, key, lengths = random_case(dtype)
    found = block_contribution(query, key, lengths, block_tokens=8)
    exact = block_contribution(query.double(), key.double(), lengths, block_tokens=8)
    assert found.mass.dtype == torch.float32
    torch.testing.assert_close(found.mass.double(), exact.mass, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lengths": torch.tensor([2, 20])}, r"W\.\.N = 3\.\.37"),
        ({"lengths": torch.tensor([38, 20])}, r"W\.\.N = 3\.\.37"),
        ({"key": torch.zeros(2, 37, 3, 16)}, "do not fit"),
        ({"key": torch.zeros(2, 37, 2, 8)}, "do not fit"),
        ({"key": torch.zeros(1, 37, 2, 16)}, "do not fit"),
        ({"block_tokens": 0}, "block_tokens < 1"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], complaint: str) -> None:
    query, key, lengths = random_case(torch.float32)
    arguments = {"query": query, "key": key, "lengths": lengths, "block_tokens": 8} | change
    with pytest.raises(ValueError, match=complaint):
        block_contribution(**arguments)  # type: ignore[arg-type]
