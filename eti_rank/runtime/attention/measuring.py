"""What both backends do after each layer: let the queries that measure the blocks measure them."""

from typing import Any

import torch
from eti_kernels import backends
from torch import Tensor

from eti_rank.runtime.attention.batch_plan import BatchPlan


class Measuring:
    """Stands before one of SGLang's backends in the bases of ours; `_plan` says which queries measure."""

    _plan: BatchPlan
    token_to_kv_pool: Any
    req_to_token_pool: Any

    def forward_extend(  # noqa: PLR0917  # SGLang's signature
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Tensor:
        """As SGLang's; the ends of prompts measure their blocks."""
        output: Tensor = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)  # type: ignore[misc]
        self._measure(q, layer, forward_batch)
        return output

    def forward_decode(  # noqa: PLR0917  # SGLang's signature
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Tensor:
        """As SGLang's; steps that look at everything for a refresh measure their blocks."""
        output: Tensor = super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)  # type: ignore[misc]
        self._measure(q, layer, forward_batch)
        return output

    def _measure(self, q: Tensor, layer: Any, forward_batch: Any) -> None:
        if not self._plan.measurements or not _is_plain(layer, forward_batch):
            return
        block_contribution = backends.load("block_contribution", backends.fitting(q.device.type))
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        table = self.req_to_token_pool.req_to_token
        for one in self._plan.measurements:
            places = table[forward_batch.req_pool_indices[one.row], : one.context_tokens]
            measured = block_contribution(
                queries[None, one.end - one.window : one.end],
                keys.index_select(0, places)[None],
                torch.tensor([one.context_tokens], device=keys.device),
                block_tokens=1,
                scale=layer.scaling,
            )
            one.plan.add_layer(measured.mass[0])


def _is_plain(layer: Any, forward_batch: Any) -> bool:
    """Whether the layer attends causally to the whole context."""
    windowed = layer.sliding_window_size is not None and layer.sliding_window_size > -1
    return not (windowed or layer.is_cross_attention or forward_batch.encoder_lens is not None)
