"""Time of one scheduling decision: the order of a long queue, as the scheduler asks for it in each step.

    OMP_NUM_THREADS=1 python -m eval.queue_cost

Between two steps a batch has left at the front, some requests have come, and cached lengths have changed at
the head. Target: below 2 ms with 4,096 requests waiting.
"""

import statistics
import time
from types import SimpleNamespace
from typing import Any

from eti_rank.engine.sglang_local import arguments, forkserver
from eti_rank.engine.wire import SchedulingConfig, StepParams
from eval import record

WAITING, ADMITTED, STEPS, WARM_UP = 4096, 16, 300, 50


def waiting(number: int, now_s: float) -> Any:
    """What the policy reads of one of SGLang's requests."""
    told = StepParams(expected_gain=(number * 7 % 101) / 10, arrived_s=now_s, shared_prefix_tokens=64)
    return SimpleNamespace(
        sampling_params=SimpleNamespace(custom_params=told.encode(), max_new_tokens=0),
        origin_input_ids=list(range(number % 13, number % 13 + 150)),
        output_ids=[],
        num_matched_prefix_tokens=0,
    )


def main() -> None:
    """Time, print and write."""
    with forkserver.environment(arguments.CPU_ENVIRONMENT):
        from eti_rank.runtime.scheduling import HEAD, EntropicQueue

    queue, now_s = EntropicQueue(SchedulingConfig()), time.time()
    line = [waiting(number, now_s) for number in range(WAITING)]
    taken_ms = []
    for step in range(STEPS + WARM_UP):
        now_s += 0.1
        del line[:ADMITTED]
        line += [waiting(step * ADMITTED + n, now_s) for n in range(ADMITTED)]
        for request in line[:HEAD:4]:
            request.num_matched_prefix_tokens = 64 if step % 2 else 0
        began = time.perf_counter()
        queue.sort(line, now_s)
        taken_ms.append((time.perf_counter() - began) * 1e3)
    kept = taken_ms[WARM_UP:]
    figures = {
        "waiting": WAITING,
        "median_ms": statistics.median(kept),
        "p95_ms": statistics.quantiles(kept, n=20)[-1],
        "first_step_ms": taken_ms[0],
    }
    print(figures)
    record.write_section("runtime", "queue", figures, "OMP_NUM_THREADS=1 python -m eval.queue_cost")


if __name__ == "__main__":
    main()
