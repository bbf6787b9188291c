"""How close the kernels come to what the device can do.

    python kernels/bench.py --json figures.json

Each kernel is compared with its reference first: a wrong answer is not worth timing. The limit is measured on
the same device: bytes per second of a large copy for the kernels that read much and compute little.
Without a CUDA device there is nothing to measure, and the command says so and fails; ``--interpret`` then
checks the kernels alone, on small inputs in Triton's interpreter.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

WARM_UPS, RUNS = 10, 50
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
COPY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size."""

    name: str
    kernel: Callable[[], Any]
    reference: Callable[[], Any]
    read_bytes: int
    """What it has to read at least once."""
    dtype: torch.dtype


def cases(device: str, small: bool) -> list[Case]:
    """The sizes of a served model, or small ones that an interpreter can do."""
    found = []
    for rows, vocabulary, dtype in (
        [(2, 5001, torch.float32)]
        if small
        else [(8, 151_936, torch.float32), (256, 151_936, torch.float32), (256, 151_936, torch.bfloat16)]
    ):
        found.append(_row_entropy(device, rows, vocabulary, dtype))
    for rows, tokens in [(1, 200)] if small else [(1, 32_768), (16, 8_192)]:
        found.append(_block_contribution(device, rows, tokens))
        found.extend(_block_sparse(device, rows, tokens, kept) for kept in (1.0, 0.25))
    return found


def _row_entropy(device: str, rows: int, vocabulary: int, dtype: torch.dtype) -> Case:
    from eti_kernels.row_entropy import reference, triton

    logits = (torch.randn(rows, vocabulary, device=device) * 4).to(dtype)
    return Case(
        f"row_entropy [{rows}, {vocabulary}] {str(dtype).removeprefix('torch.')}, k = 20",
        lambda: triton.row_entropy(logits, k=20),
        lambda: reference.row_entropy(logits, k=20),
        logits.numel() * logits.element_size(),
        torch.float32,
    )


def _block_contribution(device: str, rows: int, tokens: int) -> Case:
    from eti_kernels.block_contribution import reference, triton

    dtype, query, key, lengths = _context(device, rows, tokens, window=32)

    def run(function: Any) -> Any:
        return function(query, key, lengths, block_tokens=16)

    return Case(
        f"block_contribution [{rows}, {tokens}], window 32",
        lambda: run(triton.block_contribution),
        lambda: run(reference.block_contribution),
        2 * key.numel() * key.element_size(),  # once per kernel
        dtype,
    )


def _block_sparse(device: str, rows: int, tokens: int, kept: float) -> Case:
    from eti_kernels.block_sparse_attention import reference, triton

    dtype, query, key, lengths = _context(device, rows, tokens, window=1)
    value, blocks = torch.randn_like(key), -(-tokens // 16)
    count = max(1, int(blocks * kept))
    chosen = torch.stack([torch.randperm(blocks, device=device)[:count] for _ in range(rows)])
    how = {
        "indptr": torch.arange(0, (rows + 1) * count, count, dtype=torch.int32, device=device),
        "indices": chosen.flatten().to(torch.int32),
        "block_tokens": 16,
    }
    return Case(
        f"block_sparse_attention [{rows}, {tokens}], {kept:.0%} kept",
        lambda: triton.block_sparse_attention(query, key, value, lengths, **how),
        lambda: reference.block_sparse_attention(query, key, value, lengths, **how),
        int(2 * key.numel() * key.element_size() * kept),
        dtype,
    )


def _context(
    device: str, rows: int, tokens: int, *, window: int
) -> tuple[torch.dtype, torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = torch.float16 if device == "cuda" else torch.float32
    query = torch.randn(rows, window, 16, 128, device=device, dtype=dtype)
    key = torch.randn(rows, tokens, 8, 128, device=device, dtype=dtype)
    return dtype, query, key, torch.full((rows,), tokens, device=device)


def check(case: Case) -> None:
    """Refuse to time a wrong answer.

    Raises:
        AssertionError: a result differs from the reference's by more than the type allows.
    """
    tolerance = TOLERANCE[case.dtype]
    for ours, theirs in zip(case.kernel(), case.reference(), strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), atol=tolerance, rtol=tolerance)


def seconds(function: Callable[[], Any]) -> list[float]:
    """Of each run, by the device's own clock."""
    for _ in range(WARM_UPS):
        function()
    taken = []
    for _ in range(RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return taken


def copy_bytes_per_s() -> float:
    """What this device's memory gives: bytes read and written by a large copy."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / statistics.median(seconds(lambda: target.copy_(source)))


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interpret", action="store_true", help="check small inputs in Triton's interpreter")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    if given.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        for case in cases("cpu", small=True):
            check(case)
            print(f"{case.name:60s} equals its reference")
        return 0
    if not torch.cuda.is_available():
        print("kernels/bench.py needs a CUDA device; --interpret checks without one", file=sys.stderr)
        return 1
    limit, rows = copy_bytes_per_s(), []
    print(f"{torch.cuda.get_device_name()}: a copy moves {limit / 1e9:.0f} GB/s")
    for case in cases("cuda", small=False):
        check(case)
        taken, plain = seconds(case.kernel), seconds(case.reference)
        middle = statistics.median(taken)
        rows.append(
            {
                "case": case.name,
                "median_us": middle * 1e6,
                "bytes_per_s": case.read_bytes / middle,
                "share_of_limit": case.read_bytes / middle / limit,
                "speed_up": statistics.median(plain) / middle,
                "seconds": taken,
            }
        )
        print(
            f"{case.name:60s} {middle * 1e6:9.1f} us {case.read_bytes / middle / 1e9:7.0f} GB/s "
            f"({rows[-1]['share_of_limit']:.0%} of the limit), {rows[-1]['speed_up']:.1f} x the reference"
        )
    if given.json:
        figures = {"device": torch.cuda.get_device_name(), "copy_bytes_per_s": limit, "rows": rows}
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
