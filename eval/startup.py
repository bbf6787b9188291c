"""How long ``eti-rank serve`` takes from process start to ready, and where the time goes.

    python -m eval.startup --runs 5

The first run reads SGLang from disk if nothing has read it before; the others find it in memory.
"""

import argparse
import statistics

import httpx

from eval import record, served


def one() -> dict[str, float]:
    """Seconds of one start: its phases by the engine's own clock, and the whole by ours."""
    with served.service() as service:
        phases = httpx.get(f"{service.url}/info").json()["engine"]["description"]["startup_s"]
        return {"listening": service.listening_s, **phases, "ready": service.ready_s}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    runs = []
    for number in range(given.runs):
        runs.append({phase: round(seconds, 2) for phase, seconds in one().items()})
        print(number, runs[-1], flush=True)
    warm = runs[1:] or runs
    median = {phase: round(statistics.median(run[phase] for run in warm), 2) for phase in warm[0]}
    record.write(
        "startup", {"warm_median_s": median, "runs": runs}, f"python -m eval.startup --runs {given.runs}"
    )
    print("median of the warm runs", median)


if __name__ == "__main__":
    main()
