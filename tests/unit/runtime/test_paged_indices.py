"""What FlashInfer is planned with, on a CPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eti_rank.runtime.paged_indices import compact


def test_rows_keep_their_own_places_in_order() -> None:
    indices = torch.tensor([10, 11, 12, 13, 20, 21, 30, 31, 32], dtype=torch.int32)
    kept = compact([4, 2, 3], indices, [np.array([0, 3]), None, np.array([2])])
    assert kept.kv_indptr.tolist() == [0, 2, 4, 5]
    assert kept.kv_indices.tolist() == [10, 13, 20, 21, 32]
    assert kept.lengths.tolist() == [2, 2, 1]
    assert kept.kv_indices.dtype == kept.kv_indptr.dtype == torch.int32


def test_keeping_all_is_what_came_in() -> None:
    indices = torch.arange(100, 107, dtype=torch.int32)
    kept = compact([3, 4], indices, [None, None])
    assert torch.equal(kept.kv_indices, indices)
    assert kept.kv_indptr.tolist() == [0, 3, 7]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_each_row_is_its_own_selection(seed: int, contexts: list[int]) -> None:
    random = np.random.default_rng(seed)
    rows = [torch.from_numpy(random.permutation(1000)[:context]) for context in contexts]
    kept = [
        None if random.random() < 0.3 else np.flatnonzero(random.random(context) < 0.5)
        for context in contexts
    ]
    result = compact(contexts, torch.cat(rows), kept)
    for place, (row, positions) in enumerate(zip(rows, kept, strict=True)):
        own = result.kv_indices[result.kv_indptr[place] : result.kv_indptr[place + 1]]
        assert torch.equal(own, row if positions is None else row[positions])


@pytest.mark.parametrize(
    ("contexts", "kept", "message"),
    [
        ([4], [np.array([4])], "row 0 has 4 tokens"),
        ([2, 2], [None, np.array([0, 2])], "row 1 has 2 tokens"),
        ([4], [None, None], "1 rows of 4 tokens, but 2 lists"),
        ([3], [None], "1 rows of 3 tokens, but 1 lists and 4 indices"),
    ],
)
def test_what_does_not_fit_is_refused(contexts: list[int], kept: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compact(contexts, torch.arange(4), kept)  # type: ignore[arg-type]
