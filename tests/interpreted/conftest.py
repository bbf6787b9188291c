"""Triton's kernels against their references: compiled on a CUDA device, in Triton's interpreter elsewhere.

Triton decides at import whether it interprets, so without a device these tests run by themselves, with
TRITON_INTERPRET=1 (`make test` does that); in any other run they are not collected.
"""

import os

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if DEVICE == "cuda" or INTERPRETED else ["test_*.py"]

TOLERANCE = {
    torch.float32: 2e-5,  # other orders of summing up to 10,000 terms
    torch.float16: 2e-3,  # the result is rounded to 11 bits, and so are the weights of its sum
    torch.bfloat16: 1.6e-2,  # to 8 bits
}
"""Largest difference of a result from the reference's, relative to 1 + its size, by the type that came in."""


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal within the tolerance of the type, infinities included."""
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(ours.float(), theirs.float(), atol=tolerance, rtol=tolerance)
