"""The same operation in several backends, chosen by name: never another one in its place."""

import importlib
from collections.abc import Callable
from typing import Any, Final

BACKENDS: Final = {
    "row_entropy": ("reference", "triton"),
    "block_contribution": ("reference", "triton"),
    "block_sparse_attention": ("reference", "triton", "flashinfer"),
}
"""By operation; a backend is a module beside the operation's reference."""


def load(operation: str, backend: str) -> Callable[..., Any]:
    """The function of an operation; all backends take and return the same.

    Raises:
        ValueError: there is no such operation, or not in this backend.
        ImportError: the backend's library is not installed.
    """
    if backend not in BACKENDS.get(operation, ()):
        offered = "; ".join(f"{name}: {', '.join(some)}" for name, some in BACKENDS.items())
        raise ValueError(f"no {operation!r} in {backend!r}; there is {offered}")
    module = importlib.import_module(f"eti_kernels.{operation}.{backend}")
    function: Callable[..., Any] = getattr(module, operation)
    return function


def fitting(device: str) -> str:
    """The backend for tensors of a device: `triton` on CUDA, `reference` elsewhere."""
    return "triton" if device.split(":", maxsplit=1)[0] == "cuda" else "reference"
