"""The paper's Proposition 3: no request starves.

By priority alone it does not hold: an adversary who keeps sending work of higher priority delays a request
for as long as he likes. With a ceiling on pi and a price of waiting it holds, with a bound that is attained.
What the bound cannot do is make up for an overload, because the work ahead then grows without limit.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eti_rank.control import priority as law
from eti_rank.control.domain import FloatArray

AGEING = law.Ageing(ceiling=1.0, per_second=0.005)
RATE = 1.0
"""Work served per second; a request is 1 unit on average."""
DISCIPLINES = ("priority alone", "with ageing", "first come, first served")


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests in order of arrival, [N] each."""

    arrival_s: FloatArray
    pi: FloatArray
    work: FloatArray


def study(seed: int) -> tuple[dict[str, object], Figure]:
    """Figures for the record, and the picture."""
    rng = np.random.default_rng(seed)
    picture = Figure(figsize=(13, 3.8), layout="constrained")
    left, middle, right = picture.subplots(1, 3)
    return {
        "condition": "pi is cut at P, waiting earns a > 0, and arrivals do not exceed the rate of service",
        "fails": "priority alone, against an adversary; overload, where the bound itself grows",
        "overtaking_s": AGEING.overtaking_s,
        "adversary": _adversary(left),
        "open_arrivals": _open_arrivals(rng, middle, load=0.95, requests=20_000),
        "load": _loads(rng, right, requests=8000),
    }, picture


def waits(stream: Stream, discipline: str) -> FloatArray:
    """Seconds until each request begins, on one server that neither idles nor interrupts, [N]."""
    index, end = np.arange(len(stream.pi)), stream.arrival_s[-1]
    keys = {
        "priority alone": np.minimum(stream.pi, AGEING.ceiling),
        "with ageing": law.aged(stream.pi, stream.arrival_s, AGEING, now_s=end),
        "first come, first served": -stream.arrival_s,
    }[discipline]
    # keys grow alike, so one order serves for all times
    place = np.empty_like(index)
    place[law.order(keys, arrival_s=stream.arrival_s, index=index)] = index
    by_place, waiting, begun = np.argsort(place), list[int](), np.empty(len(index))
    now, coming = 0.0, 0
    for _ in index:
        if not waiting:
            now = max(now, stream.arrival_s[coming])
        while coming < len(index) and stream.arrival_s[coming] <= now:
            heapq.heappush(waiting, int(place[coming]))
            coming += 1
        first = by_place[heapq.heappop(waiting)]
        begun[first] = now
        now += stream.work[first] / RATE
    return begun - stream.arrival_s


def bounds_s(stream: Stream, waited_s: FloatArray) -> FloatArray:
    """`waiting_bound_s` of every request, [N], with the work that was really ahead."""
    begun = stream.arrival_s + waited_s
    found = np.empty(len(begun))
    for request, arrival in enumerate(stream.arrival_s):
        moment = arrival + AGEING.overtaking_s
        rivals = slice(0, int(np.searchsorted(stream.arrival_s, moment)))
        left = stream.work[rivals] - np.clip((moment - begun[rivals]) * RATE, 0, stream.work[rivals])
        if begun[request] < moment:  # served before the bound begins to count
            left = np.zeros(1)
        else:
            left[request] = 0.0
        found[request] = law.waiting_bound_s(AGEING, work_ahead=float(left.sum()), rate=RATE)
    return found


def _poisson(rng: np.random.Generator, *, load: float, requests: int) -> Stream:
    """Gains per cost as a reranker sees them: most steps settle little, some settle much."""
    return Stream(
        arrival_s=np.cumsum(rng.exponential(1 / (load * RATE), requests)),
        pi=rng.beta(0.5, 1.5, requests),
        work=rng.exponential(1, requests),
    )


def _adversary(axes: Axes) -> list[dict[str, object]]:
    """A request worth nothing at 0, and one of the highest priority per second of work from then on."""
    horizons = np.array([100, 200, 400, 800, 1600])
    figures: list[dict[str, object]] = []
    for discipline in DISCIPLINES:
        victim_s = []
        for horizon in horizons:
            rivals = np.arange(horizon, dtype=np.float64)
            pi = np.r_[0.0, np.full(horizon, AGEING.ceiling)]
            stream = Stream(np.r_[0.0, rivals], pi, np.ones(horizon + 1))
            victim_s.append(float(waits(stream, discipline)[0]))
        axes.plot(horizons, victim_s, "o-", label=discipline, lw=1.2, ms=3)
        figures.append({"discipline": discipline, "horizon_s": horizons.tolist(), "victim_waits_s": victim_s})
    axes.axhline(AGEING.overtaking_s, color="black", lw=0.6, ls=":", label="bound P/a")
    axes.set(title="an adversary against one request", xlabel="horizon (s)", ylabel="wait (s)")
    axes.legend(fontsize=7)
    return figures


def _open_arrivals(rng: np.random.Generator, axes: Axes, *, load: float, requests: int) -> dict[str, object]:
    stream = _poisson(rng, load=load, requests=requests)
    figures: dict[str, object] = {"load": load, "requests": requests}
    for discipline in DISCIPLINES:
        waited = waits(stream, discipline)
        ordered = np.sort(waited)
        axes.plot(ordered, 1 - np.arange(requests) / requests, label=discipline, lw=1.2)
        figures[discipline] = {
            "mean_wait_s": float(waited.mean()),
            "gain_weighted_mean_wait_s": float(np.average(waited, weights=stream.pi)),
            "longest_wait_s": float(waited.max()),
        }
        if discipline == "with ageing":
            slack = bounds_s(stream, waited) - waited
            figures["waits_beyond_the_bound"] = int((slack < -1e-6).sum())
    axes.set(
        title=f"open arrivals, load {load}", xlabel="wait (s)", ylabel="share waiting longer", yscale="log"
    )
    axes.legend(fontsize=7)
    return figures


def _loads(rng: np.random.Generator, axes: Axes, *, requests: int) -> list[dict[str, float]]:
    """Where the bound holds and is of no use: above load 1 the work ahead has no limit."""
    figures = []
    for load in (0.8, 0.95, 1.2):
        stream = _poisson(rng, load=load, requests=requests)
        waited = waits(stream, "with ageing")
        slack = bounds_s(stream, waited) - waited
        so_far = np.maximum.accumulate(waited)
        axes.plot(stream.arrival_s, so_far, label=f"load {load}", lw=1.2)
        figures.append(
            {
                "load": load,
                "longest_wait_first_half_s": float(so_far[requests // 2]),
                "longest_wait_s": float(so_far[-1]),
                "waits_beyond_the_bound": int((slack < -1e-6).sum()),
            }
        )
    axes.set(title="longest wait so far, with ageing", xlabel="time (s)", ylabel="wait (s)", yscale="log")
    axes.legend(fontsize=7)
    return figures
