from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eti_rank.control import pruning as law
from eti_rank.errors import DomainError

laws = settings(deadline=None, derandomize=True, max_examples=100)
EXACT = 1e-12


def attention_rows(
    rng: np.random.Generator, lengths: NDArray[np.int64], tokens: int, spread: float
) -> NDArray[np.float64]:
    """[B, tokens]: softmax of normal scores, 0 from each row's length on."""
    scores = np.exp(rng.normal(0, spread, (len(lengths), tokens)))
    scores[np.arange(tokens) >= lengths[:, None]] = 0
    return scores / scores.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class Case:
    """One decision with everything that it rests on."""

    attention: NDArray[np.float64]
    surprisal: NDArray[np.float64]
    values: NDArray[np.float64]
    block_tokens: int
    block_counts: NDArray[np.int64]
    protected: NDArray[np.bool_]
    guards: law.Guards
    theta: float
    use_surprisal: bool

    @property
    def blocks(self) -> law.BlockContribution:
        surprisal = self.surprisal if self.use_surprisal else None
        return law.block_contribution(self.attention, surprisal, block_tokens=self.block_tokens)

    def keep(self, theta: float) -> law.KeptBlocks:
        return law.keep_blocks(
            self.blocks, theta, self.guards, block_counts=self.block_counts, protected=self.protected
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    block_tokens, tokens, rows = draw(st.integers(1, 16)), draw(st.integers(1, 200)), draw(st.integers(1, 4))
    lengths = rng.integers(1, tokens + 1, rows)
    return Case(
        attention=attention_rows(rng, lengths, tokens, draw(st.sampled_from([0.1, 1, 4]))),
        surprisal=rng.exponential(3, (rows, tokens)) * (rng.random((rows, tokens)) < 0.7),
        values=rng.normal(0, 1, (rows, tokens, 5)),
        block_tokens=block_tokens,
        block_counts=-(-lengths // block_tokens),
        protected=rng.random((rows, -(-tokens // block_tokens))) < 0.1,
        guards=law.Guards(
            first_blocks=draw(st.integers(1, 3)),
            last_blocks=draw(st.integers(0, 3)),
            min_blocks=draw(st.integers(0, 12)),
            max_dropped_mass=draw(st.sampled_from([0.0, 0.05, 0.5, 0.99])),
        ),
        theta=draw(st.sampled_from([0.0, 0.5, 1.0, 1e9])),
        use_surprisal=draw(st.booleans()),
    )


@laws
@given(cases())
def test_guards_are_never_violated(case: Case) -> None:
    kept, guards, blocks = case.keep(case.theta), case.guards, case.blocks
    for row, count in enumerate(case.block_counts):
        mask = kept.mask[row, :count]
        assert not kept.mask[row, count:].any()
        assert mask[: guards.first_blocks].all()
        assert mask[max(0, count - guards.last_blocks) :].all()
        assert mask[case.protected[row, :count]].all()
        assert mask.sum() >= min(guards.min_blocks, count)
        dropped = blocks.mass[row, :count][~mask].sum()
        assert dropped <= guards.max_dropped_mass + EXACT
        assert kept.dropped_mass[row] == pytest.approx(dropped, abs=EXACT)
        contribution = blocks.contribution[row, :count]
        assert mask[contribution > case.theta * contribution.mean() * (1 + EXACT)].all()


@laws
@given(cases())
def test_the_error_bound_is_never_violated(case: Case) -> None:
    kept, attention = case.keep(case.theta), case.attention
    keep = np.repeat(kept.mask, case.block_tokens, axis=1)[:, : attention.shape[1]]
    sparse = np.where(keep, attention, 0)
    sparse /= sparse.sum(axis=-1, keepdims=True)
    error = np.linalg.norm(np.einsum("bn,bnd->bd", attention - sparse, case.values), axis=-1)
    longest = np.linalg.norm(case.values, axis=-1).max(axis=-1)
    assert (error <= law.output_error_bound(kept.dropped_mass, longest) + EXACT).all()


def test_the_error_bound_is_attained() -> None:
    """Everything dropped points one way, everything kept the other."""
    attention, values, dropped = np.array([0.7, 0.2, 0.1]), np.array([3.0, 3.0, -3.0]), 0.1
    sparse = np.array([0.7, 0.2, 0.0]) / 0.9
    assert abs((attention - sparse) @ values) == pytest.approx(law.output_error_bound(dropped, 3.0))


@laws
@given(cases())
def test_theta_zero_keeps_everything(case: Case) -> None:
    kept = case.keep(0.0)
    np.testing.assert_array_equal(kept.mask.sum(axis=-1), case.block_counts)
    np.testing.assert_array_equal(kept.dropped_mass, 0)
    np.testing.assert_array_equal(kept.kept_fraction, 1)


@laws
@given(cases())
def test_bsr_is_the_mask(case: Case) -> None:
    kept = case.keep(case.theta)
    bsr = kept.to_bsr()
    rebuilt = np.zeros_like(kept.mask)
    for row in range(len(rebuilt)):
        assert (np.diff(bsr.of_row(row)) > 0).all()
        rebuilt[row, bsr.of_row(row)] = True
    np.testing.assert_array_equal(rebuilt, kept.mask)
    assert bsr.indptr[0] == 0
    assert bsr.indptr[-1] == len(bsr.indices)
    assert bsr.indptr.dtype == bsr.indices.dtype == np.int32


@laws
@given(cases())
def test_contributions_are_sums_over_blocks(case: Case) -> None:
    found = law.block_contribution(case.attention, case.surprisal, block_tokens=case.block_tokens)
    for block in range(found.mass.shape[1]):
        part = slice(block * case.block_tokens, (block + 1) * case.block_tokens)
        weights = case.attention[:, part]
        np.testing.assert_allclose(found.mass[:, block], weights.sum(axis=-1), atol=EXACT)
        contribution = (weights * case.surprisal[:, part]).sum(axis=-1)
        np.testing.assert_allclose(found.contribution[:, block], contribution, atol=EXACT)


def test_threshold_falls_from_certain_to_undecided() -> None:
    schedule = law.Schedule(confident_theta=2.0, low_nats=1.0, high_nats=3.0)
    np.testing.assert_allclose(law.threshold([0, 1, 1.5, 2, 3, 9], schedule), [2, 2, 1.5, 1, 0, 0])


def relative_error(guards: law.Guards, seed: int) -> float:
    """Error of one sparse attention at 8 of 64 blocks, over the length of the dense output.

    The sink is what trained models show: the first tokens draw half of the attention, carry no surprise and
    have short values.
    """
    rng = np.random.default_rng(seed)
    attention = attention_rows(rng, np.array([1024]), 1024, 1.5)
    attention[:, :4] = attention.sum() / 4
    attention /= attention.sum()
    surprisal = rng.exponential(3, (1, 1024))
    surprisal[:, :4] = 0.0
    values = rng.normal(0, 1, (1024, 16))
    values[:4] *= 0.05
    blocks = law.block_contribution(attention, surprisal, block_tokens=16)
    eighth = np.sort(blocks.contribution[0])[-8] / blocks.contribution.mean()
    kept = law.keep_blocks(blocks, eighth, guards)
    sparse = attention[0] * np.repeat(kept.mask[0], 16)
    sparse /= sparse.sum()
    return float(np.linalg.norm((attention[0] - sparse) @ values) / np.linalg.norm(attention[0] @ values))


def test_guards_keep_the_attention_sink_that_contribution_alone_drops() -> None:
    unguarded = law.Guards(first_blocks=0, last_blocks=0, min_blocks=1, max_dropped_mass=0.999)
    guarded = law.Guards(first_blocks=1, last_blocks=0, min_blocks=1, max_dropped_mass=0.999)
    errors = np.array([[relative_error(g, seed) for g in (unguarded, guarded)] for seed in range(40)])
    bare, safe = np.median(errors, axis=0)
    # the figures that the module quotes
    assert bare == pytest.approx(5.3, abs=0.5)
    assert safe == pytest.approx(0.84, abs=0.1)


BLOCKS = law.BlockContribution(np.ones((1, 4)), np.full((1, 4), 0.25))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: law.block_contribution([[0.5, 0.6]], None, block_tokens=1), r"must total 1, got 1\.1"),
        (lambda: law.block_contribution([[1.5, -0.5]], None, block_tokens=1), "attention must be >= 0"),
        (lambda: law.block_contribution([1.0], None, block_tokens=1), r"must be \[B, tokens\]"),
        (lambda: law.block_contribution([[1.0]], None, block_tokens=0), "block_tokens >= 1"),
        (lambda: law.block_contribution([[1.0]], [[1.0, 2.0]], block_tokens=1), "attention's shape"),
        (lambda: law.block_contribution([[1.0]], [[-1.0]], block_tokens=1), "surprisal_nats must be >= 0"),
        (lambda: law.threshold(-1, law.Schedule()), "entropy_nats must be >= 0"),
        (lambda: law.Schedule(low_nats=3, high_nats=3), "low_nats must be < high_nats"),
        (lambda: law.Schedule(confident_theta=-1), "confident_theta must be >= 0"),
        (lambda: law.Guards(first_blocks=-1), "first_blocks, last_blocks and min_blocks must be >= 0"),
        (lambda: law.Guards(first_blocks=0, last_blocks=0, min_blocks=0), "must keep a block"),
        (lambda: law.Guards(max_dropped_mass=1), "max_dropped_mass must be < 1"),
        (lambda: law.keep_blocks(BLOCKS, -1, law.Guards()), "theta must be >= 0"),
        (lambda: law.keep_blocks(BLOCKS, 1, law.Guards(), block_counts=[5]), r"1\.\.N = 4, got 5"),
        (lambda: law.keep_blocks(BLOCKS, 1, law.Guards(), block_counts=[0]), r"1\.\.N = 4, got 0"),
        (lambda: law.output_error_bound(1.1, 1), "dropped_mass must be <= 1"),
        (lambda: law.output_error_bound(0.1, -1), "max_value_norm must be >= 0"),
    ],
)
def test_outside_the_domain(call: Callable[[], object], complaint: str) -> None:
    with pytest.raises(DomainError, match=complaint):
        call()
