"""`eti_torch`: SGLang's torch-native backend, with rows that leave out blocks of their prompt.

Beside the pruned rows it does the dense ones faster, to the same bits:

- an extend behind a cached prefix computes the new queries alone, under a causal mask aligned to the end;
  the parent pads the queries to the full length and throws the prefix's away;
- keys and values are gathered with `index_select`, which torch does several times faster on a CPU than
  the parent's indexing.

Sliding windows, cross attention and encoders are the parent's. Their layers neither prune nor measure.
"""

from collections.abc import Mapping
from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from eti_rank.runtime.attention import batch_plan
from eti_rank.runtime.attention.measuring import Measuring


class EtiTorchBackend(Measuring, TorchNativeAttnBackend):  # type: ignore[misc]
    """One per model runner; used by one thread.

    Args:
        model_runner: SGLang's.
        refusal: why nothing may be left out; None where it may.
    """

    def __init__(self, model_runner: Any, refusal: str | None = None) -> None:
        super().__init__(model_runner)
        self._refusal = refusal
        self._plan = batch_plan.NOTHING
        self._kept: list[Tensor | None] = []
        """Per row of the current batch, places in the KV pool; empty where no row prunes."""
        self._masks: dict[tuple[int, int], Tensor] = {}
        """Of the current batch, by (prefix, new tokens)."""

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Once per forward pass: decide for each row, and find the kept tokens in the pool for all layers."""
        super().init_forward_metadata(forward_batch)
        self._masks = {}
        self._plan = batch_plan.plan_batch(forward_batch, self._refusal)
        table, pool_indices = self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices
        self._kept = [
            None
            if positions is None
            else table[pool_indices[row]].index_select(0, torch.from_numpy(positions))
            for row, positions in enumerate(self._plan.kept)
        ]

    def _run_sdpa_forward_extend(  # noqa: PLR0917  # the parent's signature
        self,
        query: Tensor,
        output: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        req_to_token: Tensor,
        req_pool_indices: Tensor,
        seq_lens: Tensor,
        extend_prefix_lens: Tensor,
        extend_seq_lens: Tensor,
        encoder_lens: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        if encoder_lens is not None or _is_special(options) or not options["causal"]:
            pool = (k_cache, v_cache, req_to_token, req_pool_indices, seq_lens)
            extends = (extend_prefix_lens, extend_seq_lens, encoder_lens)
            whole: Tensor = super()._run_sdpa_forward_extend(query, output, *pool, *extends, **options)
            return whole
        begin = 0
        lengths = zip(seq_lens.tolist(), extend_prefix_lens.tolist(), extend_seq_lens.tolist(), strict=True)
        for row, (context, prefix, new) in enumerate(lengths):
            output[begin : begin + new] = _attend(
                query[begin : begin + new],
                k_cache,
                v_cache,
                req_to_token[req_pool_indices[row], :context],
                scale=options["scaling"],
                enable_gqa=options["enable_gqa"],
                is_causal=prefix == 0,
                attn_mask=self._mask(prefix, new) if prefix else None,
            )
            begin += new
        return output

    def _run_sdpa_forward_decode(  # noqa: PLR0917  # the parent's signature
        self,
        query: Tensor,
        output: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        req_to_token: Tensor,
        req_pool_indices: Tensor,
        seq_lens: Tensor,
        encoder_lens: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        if encoder_lens is not None or _is_special(options):
            pool = (k_cache, v_cache, req_to_token, req_pool_indices, seq_lens)
            whole: Tensor = super()._run_sdpa_forward_decode(query, output, *pool, encoder_lens, **options)
            return whole
        scale, enable_gqa = options["scaling"], options["enable_gqa"]
        for row, context in enumerate(seq_lens.tolist()):
            kept = self._kept[row] if self._kept else None
            if kept is None:
                places, one = req_to_token[req_pool_indices[row], :context], slice(row, row + 1)
                output[one] = _attend(
                    query[one], k_cache, v_cache, places, scale=scale, enable_gqa=enable_gqa
                )
            else:
                output[row] = attend_kept(query[row], k_cache, v_cache, kept, scale=scale)
        return output

    def _mask(self, prefix: int, new: int) -> Tensor:
        """[new, prefix + new]: query i sees keys up to prefix + i. Made once for all layers."""
        mask = self._masks.get((prefix, new))
        if mask is None:
            mask = torch.ones(new, prefix + new, dtype=torch.bool, device=self.device).tril(prefix)
            self._masks[prefix, new] = mask
        return mask


def attend_kept(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, places: Tensor, *, scale: float | None
) -> Tensor:
    """One query over some places of the KV pool.

    The query heads that share a key head are passed as positions of one sequence, which spares repeating
    the keys.

    Args:
        query: [Hq, D].
        k_cache: [pool, Hkv, D].
        v_cache: [pool, Hkv, Dv].
        places: [K], in the pool.
        scale: of the dot products; None means D ** -0.5.

    Returns: [Hq, Dv].
    """
    key, value = _gather(k_cache, places, query.dtype), _gather(v_cache, places, query.dtype)
    heads, key_heads = query.shape[0], key.shape[0]
    grouped = query.view(1, key_heads, heads // key_heads, -1)
    out = scaled_dot_product_attention(grouped, key[None], value[None], scale=scale)
    return out.reshape(heads, -1)


def _attend(query: Tensor, k_cache: Tensor, v_cache: Tensor, places: Tensor, **how: Any) -> Tensor:
    """The parent's call for one row: [queries, Hq, D] over some places of the pool, [queries, Hq, Dv]."""
    key, value = _gather(k_cache, places, query.dtype), _gather(v_cache, places, query.dtype)
    out = scaled_dot_product_attention(query.movedim(0, 1)[None], key[None], value[None], **how)
    return out[0].movedim(1, 0)


def _gather(cache: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """[Hkv, places, D]."""
    return cache.index_select(0, places).movedim(0, 1).to(dtype)


def _is_special(options: Mapping[str, Any]) -> bool:
    return options["is_cross_attn"] or options["sliding_window_size"] is not None
