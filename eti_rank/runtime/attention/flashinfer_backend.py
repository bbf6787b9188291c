"""`eti_flashinfer`: SGLang's FlashInfer backend, planned with shorter index lists for the rows that prune.

**Unproven.** It is written against the source of SGLang 0.5.23 and has never run: no CUDA device was there.
Its index compaction (`paged_indices`) and its policy are tested on a CPU; `tests/runtime/test_flashinfer.py`
holds the tests that wait for a device.

Decode: SGLang plans FlashInfer's paged decode wrapper once per step, from one index list per row that serves
all layers. Ours packs the same list, drops what the rows leave out, and hands it to the same planner.

Extends are SGLang's own, dense: what they write goes into the prefix cache and must serve everybody, and
their attention is what measures the blocks.

Limits: decoding steps run eagerly (`disable_cuda_graph`), for a captured graph would leave out the code
that measures; no sliding windows, no cross attention, no quantised KV workspace (requests that ask are
refused, and attend to everything).
"""

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_backend import DecodeMetadata, FlashInferAttnBackend
from torch import Tensor

from eti_rank.errors import HookError
from eti_rank.runtime.attention import batch_plan
from eti_rank.runtime.attention.measuring import Measuring
from eti_rank.runtime.paged_indices import PagedIndices, compact
from eti_rank.runtime.pruning import Positions


class EtiFlashInferBackend(Measuring, FlashInferAttnBackend):  # type: ignore[misc]
    """One per model runner; used by one thread.

    Args:
        model_runner: SGLang's.
        refusal: why nothing may be left out; None where it may.

    Raises:
        HookError: decoding steps would run as captured graphs.
    """

    def __init__(self, model_runner: Any, refusal: str | None = None) -> None:
        super().__init__(model_runner, init_new_workspace=model_runner.init_new_workspace)
        if not model_runner.server_args.disable_cuda_graph:
            raise HookError("eti_flashinfer needs disable_cuda_graph: a captured graph measures nothing")
        self._refusal = refusal or self._own_refusal()
        self._plan = batch_plan.NOTHING

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Once per forward pass: decide for each row, then plan for what is kept."""
        self._plan = batch_plan.plan_batch(forward_batch, self._refusal)
        if not self._plan.kept:
            super().init_forward_metadata(forward_batch)
            return
        self._plan_batch(forward_batch, self._plan.kept)

    def _plan_batch(self, forward_batch: Any, kept: Sequence[Positions | None]) -> None:
        indices = self._all_indices(forward_batch)
        self._plan_decode(forward_batch, compact(forward_batch.seq_lens_cpu.tolist(), indices, kept))
        self.forward_metadata = DecodeMetadata(self.decode_wrappers)

    def _all_indices(self, forward_batch: Any) -> Tensor:
        """Places in the KV pool of all tokens of the batch, row after row, as the parent would plan them."""
        updater, rows = self.indices_updater_decode, forward_batch.batch_size
        indptr = updater.kv_indptr[0]
        indptr[1 : rows + 1] = torch.cumsum(forward_batch.seq_lens, dim=0)
        indices = torch.empty(forward_batch.seq_lens_sum, dtype=torch.int32, device=indptr.device)
        self.kv_index_translator.pack_read_stream(
            forward_batch.kv_loc_plan,
            req_pool_indices=forward_batch.req_pool_indices,
            seq_lens=forward_batch.seq_lens,
            indptr=indptr[: rows + 1],
            out=indices,
        )
        return indices

    def _plan_decode(self, forward_batch: Any, kept: PagedIndices) -> None:
        """The parent's planning, which takes the index list from a `spec_info` that has one."""
        self.indices_updater_decode.call_begin_forward(
            self.decode_wrappers[0],
            paged_kernel_lens=kept.lengths.to(kept.kv_indptr.device),
            paged_kernel_lens_sum=int(kept.lengths.sum()),
            kv_indptr=kept.kv_indptr,
            kv_start_idx=None,
            spec_info=kept,
            # from which the planner takes its copy of indptr in host memory
            seq_lens_cpu=kept.lengths,
            fixed_split_size=self.decode_split_tile_size,
            disable_split_kv=False,
            plan=forward_batch.kv_loc_plan,
            req_pool_indices=forward_batch.req_pool_indices,
        )

    def _own_refusal(self) -> str | None:
        if self.num_wrappers != 1:
            return "block-sparse attention on FlashInfer takes models without sliding windows and encoders"
        if self.decode_uses_dequant_workspace or self.prefill_uses_dequant_workspace:
            return "block-sparse attention on FlashInfer takes no quantised KV cache"
        if self.kv_index_translator.reads_are_translated:
            return "block-sparse attention on FlashInfer measures in a KV pool with plain indices"
        return None
