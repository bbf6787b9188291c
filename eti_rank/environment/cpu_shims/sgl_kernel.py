"""Stand-in for SGLang's kernel package on a machine without a GPU or AVX-512.

With ``SGLANG_USE_CPU_ENGINE=1`` SGLang 0.5.23 imports two names from ``sgl_kernel`` without a guard
(``mem_cache/allocation.py``, ``kernels/ops/kvcache/cache_move.py``). The first is needed for every
batch and is written here in plain torch; every other name can be imported, and raises when called.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

__version__ = "0.0.0+eti.cpu.shim"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's new cache locations into its row of the token pool, in place.

    Args:
        req_pool_indices: row of the pool for each request, [B].
        req_to_token: the pool, [rows, pool_len]; mutated.
        start_offset: first token position of each request's new slice, [B].
        end_offset: one past the last, [B].
        out_cache_loc: the new locations of all requests, one after the other, [sum(end - start)].
        pool_len: row length of the pool, as SGLang passes it.

    Raises:
        ValueError: a slice ends beyond its row, or the slices do not use up `out_cache_loc`.
    """
    taken = 0
    bounds = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in bounds:
        if end > pool_len:
            raise ValueError(f"slice [{start}, {end}) does not fit a row of {pool_len} tokens")
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start]
        taken += end - start
    if taken != out_cache_loc.numel():
        raise ValueError(f"{out_cache_loc.numel()} cache locations for {taken} tokens")


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(
            f"sgl_kernel.{name} is a compiled kernel that this CPU installation does not have; "
            "use a machine with a GPU, or an option of SGLang that does not need it"
        )

    absent.__name__ = name
    return absent
