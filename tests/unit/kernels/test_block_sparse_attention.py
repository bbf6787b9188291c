import numpy as np
import pytest
import torch
from eti_kernels.block_contribution.reference import block_contribution
from eti_kernels.block_sparse_attention.reference import block_sparse_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from eti_rank.control import pruning as law

laws = settings(deadline=None, derandomize=True, max_examples=60)
FLOAT64 = 1e-10


class Case:
    """Random queries, keys and values of ragged rows."""

    def __init__(
        self,
        seed: int,
        *,
        rows: int = 3,
        window: int = 1,
        tokens: int = 50,
        heads: tuple[int, int] = (4, 2),
        dtype: torch.dtype = torch.float64,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.query = torch.randn(rows, window, heads[0], 8, generator=generator).mul(3).to(dtype)
        self.key = torch.randn(rows, tokens, heads[1], 8, generator=generator).to(dtype)
        self.value = torch.randn(rows, tokens, heads[1], 6, generator=generator).to(dtype)
        self.lengths = torch.randint(window, tokens + 1, (rows,), generator=generator)

    def dense(self) -> Tensor:
        """torch's own attention with a causal mask for each row's last positions."""
        window, tokens = self.query.shape[1], self.key.shape[1]
        place = self.lengths[:, None] - window + torch.arange(window)
        visible = (torch.arange(tokens) <= place[:, :, None])[:, None]
        return functional.scaled_dot_product_attention(
            self.query.transpose(1, 2),
            self.key.transpose(1, 2),
            self.value.transpose(1, 2),
            attn_mask=visible,
            enable_gqa=True,
        ).transpose(1, 2)

    def sparse(self, mask: Tensor, block_tokens: int) -> tuple[Tensor, Tensor]:
        counts = mask.sum(-1)
        return block_sparse_attention(
            self.query,
            self.key,
            self.value,
            self.lengths,
            indptr=torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]),
            indices=mask.nonzero()[:, 1],
            block_tokens=block_tokens,
        )


cases = st.builds(
    Case,
    st.integers(0, 2**32),
    rows=st.integers(1, 4),
    window=st.integers(1, 5),
    tokens=st.integers(5, 70),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
)


@laws
@given(cases, st.integers(1, 17))
def test_keeping_all_is_dense_attention(case: Case, block_tokens: int) -> None:
    blocks = -(-case.key.shape[1] // block_tokens)
    output, _ = case.sparse(torch.ones(len(case.query), blocks, dtype=torch.bool), block_tokens)
    torch.testing.assert_close(output, case.dense(), atol=FLOAT64, rtol=FLOAT64)


@laws
@given(cases, st.integers(1, 17), st.integers(0, 1000))
def test_equals_attention_over_a_context_that_has_only_the_kept_tokens(
    case: Case, block_tokens: int, seed: int
) -> None:
    """The oracle takes the kept keys out and attends densely, head by head."""
    blocks = -(-case.key.shape[1] // block_tokens)
    mask = torch.rand(len(case.query), blocks, generator=torch.Generator().manual_seed(seed)) < 0.5
    output, log_sum_exp = case.sparse(mask, block_tokens)
    window, heads = case.query.shape[1:3]
    for row, length in enumerate(case.lengths.tolist()):
        kept = mask[row].repeat_interleave(block_tokens)[: case.key.shape[1]]
        for place in range(window):
            seen = kept & (torch.arange(len(kept)) <= length - window + place)
            for head in range(heads):
                source = head // (heads // case.key.shape[2])
                scores = case.key[row, seen, source] @ case.query[row, place, head] / 8**0.5
                expected = scores.softmax(0) @ case.value[row, seen, source]
                torch.testing.assert_close(output[row, place, head], expected, atol=FLOAT64, rtol=FLOAT64)
                torch.testing.assert_close(log_sum_exp[row, place, head], scores.logsumexp(0))


@laws
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3, 0.9]), st.sampled_from([0.3, 1.0, 3.0]))
def test_the_laws_error_bound_holds_per_head(seed: int, eps: float, theta: float) -> None:
    """From attention to contribution to kept blocks to output; the dropped mass is each head's own."""
    case = Case(seed, rows=1, heads=(2, 2), tokens=64)
    case.lengths = torch.tensor([64])
    blocks = block_contribution(case.query, case.key, case.lengths, block_tokens=4)
    kept = law.keep_blocks(
        law.BlockContribution(blocks.contribution.numpy(), blocks.mass.numpy()),
        theta,
        law.Guards(first_blocks=1, last_blocks=1, min_blocks=1, max_dropped_mass=eps),
    )
    output, log_sum_exp = case.sparse(torch.as_tensor(kept.mask), 4)
    dense, dense_log_sum_exp = case.sparse(torch.ones(1, 16, dtype=torch.bool), 4)
    dropped = (1 - (log_sum_exp - dense_log_sum_exp).exp()).clamp(0, 1).numpy()  # [1, 1, H]
    longest = case.value.norm(dim=-1).amax(dim=1).numpy()  # [1, H]
    error = (output - dense).norm(dim=-1).numpy()
    assert (error <= law.output_error_bound(dropped, longest[:, None]) + FLOAT64).all()
    np.testing.assert_allclose(dropped.mean(axis=(1, 2)), kept.dropped_mass, atol=FLOAT64)
    assert kept.dropped_mass[0] <= eps + FLOAT64


def test_one_kept_token_is_its_value_and_none_is_zero() -> None:
    case = Case(0, rows=2, heads=(1, 1), tokens=10)
    case.lengths = torch.tensor([10, 10])
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[0, 4] = True
    output, log_sum_exp = case.sparse(mask, 1)
    torch.testing.assert_close(output[0, 0, 0], case.value[0, 4, 0])
    assert output[1].eq(0).all()
    assert log_sum_exp[1].eq(-torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_output_is_rounded_once_to_the_queries_type(dtype: torch.dtype) -> None:
    narrow, wide = Case(5, dtype=dtype), Case(5)
    for name in ("query", "key", "value"):
        setattr(wide, name, getattr(narrow, name).double())
    mask = torch.ones(3, 7, dtype=torch.bool)
    (output, log_sum_exp), (exact, _) = narrow.sparse(mask, 8), wide.sparse(mask, 8)
    assert output.dtype == dtype
    assert log_sum_exp.dtype == torch.float32
    half_a_unit = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(output.double(), exact, atol=2e-6, rtol=half_a_unit + 1e-6)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lengths": torch.tensor([0, 9])}, r"W\.\.N = 1\.\.10"),
        ({"lengths": torch.tensor([11, 9])}, r"W\.\.N = 1\.\.10"),
        ({"indices": torch.tensor([0, 3])}, r"0\.\.2"),
        ({"indices": torch.tensor([-1, 0])}, r"0\.\.2"),
        ({"indptr": torch.tensor([0, 2])}, "rise from 0 to 2 in B"),
        ({"indptr": torch.tensor([0, 3, 2])}, "rise from 0 to 2 in B"),
        ({"indptr": torch.tensor([1, 1, 2])}, "rise from 0 to 2 in B"),
        ({"indptr": torch.tensor([0, 1, 1])}, "rise from 0 to 2 in B"),
        ({"value": torch.zeros(2, 9, 1, 6)}, "do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], complaint: str) -> None:
    case = Case(0, rows=2, heads=(1, 1), tokens=10)
    arguments = {
        "query": case.query,
        "key": case.key,
        "value": case.value,
        "lengths": torch.tensor([10, 9]),
        "indptr": torch.tensor([0, 1, 2]),
        "indices": torch.tensor([0, 1]),
        "block_tokens": 4,
    } | change
    with pytest.raises(ValueError, match=complaint):
        block_sparse_attention(**arguments)  # type: ignore[arg-type]
