import math

import numpy as np
import pytest
import torch
from eti_kernels.row_entropy.reference import row_entropy
from hypothesis import given, settings
from hypothesis import strategies as st

from eti_rank.control import entropy as law

laws = settings(deadline=None, derandomize=True, max_examples=60)
FLOAT64 = 1e-10
"""Two orders of summing up to 1,000 terms."""


@laws
@given(
    st.integers(0, 2**32),
    st.integers(1, 1000),
    st.sampled_from([(), (1,), (3,), (2, 3)]),
    st.sampled_from([0.0, 1.0, 5.0, 40.0]),
    st.floats(0.1, 3),
    st.floats(0, 1),
)
def test_equals_the_law_in_float64(
    seed: int, vocabulary: int, batch: tuple[int, ...], spread: float, temperature: float, share: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (*batch, vocabulary))
    logits[..., 1:][rng.random((*batch, vocabulary - 1)) < 0.2] = -np.inf
    k = 1 + int(share * (vocabulary - 1))
    heat = temperature * np.exp(rng.normal(0, 0.1, batch))
    expected = law.row_statistics(logits, k=k, temperature=heat)
    found = row_entropy(torch.as_tensor(logits), k=k, temperature=torch.as_tensor(heat))
    for ours, theirs in zip(
        found,
        (
            expected.entropy_nats,
            expected.varentropy_nats2,
            expected.log_sum_exp_nats,
            expected.top_k_mass,
        ),
        strict=True,
    ):
        assert ours.dtype == torch.float64
        assert ours.shape == batch
        np.testing.assert_allclose(ours.numpy(), theirs, atol=FLOAT64, rtol=FLOAT64)


@pytest.mark.parametrize("vocabulary", [1, 7, 1000])
def test_all_tokens_hold_all_mass(vocabulary: int) -> None:
    logits = torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(0))
    assert row_entropy(logits, k=vocabulary).top_k_mass.tolist() == pytest.approx([1.0] * 5, abs=1e-6)


def test_one_possible_token_and_equal_tokens() -> None:
    logits = torch.full((2, 64), -math.inf, dtype=torch.float64)
    logits[0, 3] = 5.0
    logits[1] = 2.0
    found = row_entropy(logits, k=16)
    assert found.entropy.tolist() == pytest.approx([0.0, math.log(64)])
    assert found.varentropy.tolist() == pytest.approx([0.0, 0.0])
    assert found.top_k_mass.tolist() == pytest.approx([1.0, 0.25])
    assert found.log_sum_exp.tolist() == pytest.approx([5.0, 2.0 + math.log(64)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_logits_are_widened_before_anything_else(dtype: torch.dtype) -> None:
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(1)).mul(3).to(dtype)
    found, exact = row_entropy(logits, k=20), row_entropy(logits.double(), k=20)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("k", [0, 9])
def test_k_outside_the_vocabulary(k: int) -> None:
    with pytest.raises(ValueError, match=rf"1\.\.V = 8, got {k}"):
        row_entropy(torch.zeros(2, 8), k=k)
