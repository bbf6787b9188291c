"""The paper's Theorem 1: the coupled system stays bounded.

The loop is closed: entropy sets how much context attention keeps, what is dropped flattens the logits, the
temperature answers to the entropy, and the expected decrement of entropy decides who is served next. Every
quantity stays within limits, as the theorem says. But each limit comes from one part alone (the clip, the
guards, the admitted load), and the clip bounds either sign of the temperature law. Bounded is not stable:
what holds the set point is the sign and the gain.

One entropy cannot serve both ends. Where the law holds H at H*, H tells scheduling and pruning nothing, and
entropic time stands still; so those parts have to read the entropy at T = 1.
"""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from matplotlib.figure import Figure

from eti_rank.control import entropic_time, priority, pruning
from eti_rank.control import temperature as law
from eti_rank.control.domain import FloatArray
from eti_rank.control.entropy import entropy_and_varentropy

VOCABULARY, BLOCKS, STEPS_PER_REQUEST = 200, 64, 40
TARGET_NATS = 2.0
CLIP = law.TemperatureLimits(low=0.1, high=3.0)
NO_CLIP = law.TemperatureLimits(low=1e-300, high=1e300)
GUARDS = pruning.Guards(first_blocks=1, last_blocks=2, min_blocks=8, max_dropped_mass=0.1)
NO_GUARDS = pruning.Guards(first_blocks=0, last_blocks=0, min_blocks=1, max_dropped_mass=1 - 1e-9)
SCHEDULE = pruning.Schedule(confident_theta=2.0, low_nats=1.0, high_nats=3.0)
AGEING = priority.Ageing(ceiling=0.1, per_second=0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to close the loop."""

    sampling: law.Law = law.Law.FEEDBACK
    limits: law.TemperatureLimits = CLIP
    guards: pruning.Guards = GUARDS
    load: float = 0.9
    """Steps asked for per step served."""
    flattening: float = 1.0
    """How strongly dropped attention mass flattens the logits: z (1 - flattening * dropped_mass)."""
    signal_at_one: bool = False
    """Scheduling, pruning and entropic time read the entropy at T = 1, not the one that is held."""


ARMS = {
    "solve": Arm(sampling=law.Law.SOLVE),
    "solve, signal at T = 1": Arm(sampling=law.Law.SOLVE, signal_at_one=True),
    "feedback": Arm(),
    "literal": Arm(sampling=law.Law.LITERAL),
    "literal, no clip": Arm(sampling=law.Law.LITERAL, limits=NO_CLIP),
    "feedback, no guards": Arm(guards=NO_GUARDS),
    "feedback, overload": Arm(load=1.2),
}


@dataclass(slots=True)
class Request:
    """A text being generated."""

    arrival_s: float
    context: pruning.BlockContribution
    state: law.FeedbackState = field(default_factory=law.start_feedback)
    time: entropic_time.EntropicTime | None = None
    signal_nats: float = TARGET_NATS
    """The entropy that the other parts read."""
    expected_gain_nats: float = 1.0
    steps: int = 0


@dataclass(slots=True)
class Trace:
    """What was seen at every step served."""

    temperature: list[float] = field(default_factory=list)
    entropy_nats: list[float] = field(default_factory=list)
    dropped_mass: list[float] = field(default_factory=list)
    tau_nats: list[float] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)


def study(seed: int) -> tuple[dict[str, object], Figure]:
    """Figures for the record, and the picture."""
    traces = {name: run(arm, seed=seed, steps=4000) for name, arm in ARMS.items()}
    picture = Figure(figsize=(13, 3.8), layout="constrained")
    left, middle, right = picture.subplots(1, 3)
    for name in ("literal, no clip", "literal", "feedback"):
        left.plot(np.log(traces[name].temperature[:300]), label=name, lw=1)
    left.set(title="bounded by the clip alone", xlabel="step served", ylabel="ln T", yscale="symlog")
    couplings = _couplings(seed)
    for name, curve in couplings.items():
        middle.plot(curve["flattening"], curve["rmse_nats"], "o-", label=name, lw=1.2, ms=3)
    middle.set(title="distance from H*", xlabel="coupling from pruning to logits", ylabel="rmse of H (nats)")
    for name in ("feedback", "feedback, overload"):
        right.plot(traces[name].queue, label=f"load {ARMS[name].load}", lw=1)
    right.set(title="bounded by the load alone", xlabel="step served", ylabel="requests waiting")
    for axes in (left, middle, right):
        axes.legend(fontsize=7)
    return {
        "condition": "clip on T, guards on pruning, ceiling and ageing on priority, load below 1",
        "fails": "no clip: ln T; no guards: dropped mass; overload: queue; and bounded does not mean stable",
        "ln_vocabulary_nats": float(np.log(VOCABULARY)),
        "arms": {name: _figures(trace) for name, trace in traces.items()},
        "coupling": couplings,
    }, picture


def run(arm: Arm, *, seed: int, steps: int) -> Trace:
    """Serve `steps` steps of requests that arrive at random; one step takes one second."""
    rng, trace = np.random.default_rng(seed), Trace()
    waiting: deque[Request] = deque()
    spread = 0.0
    for now in range(steps):
        for _ in range(rng.poisson(arm.load / STEPS_PER_REQUEST) + (now == 0)):
            waiting.append(Request(arrival_s=float(now), context=_context(rng)))
        trace.queue.append(len(waiting))
        spread = 0.6 * spread + 0.8 * rng.normal()
        logits = rng.normal(0, 1, VOCABULARY) * np.exp(0.9 + 0.35 * spread)
        if not waiting:
            continue
        request = waiting[_first(waiting, now_s=float(now))]
        _advance(request, logits, arm, trace)
        if request.steps == STEPS_PER_REQUEST:
            waiting.remove(request)
    return trace


def _context(rng: np.random.Generator) -> pruning.BlockContribution:
    attention = np.exp(rng.normal(0, 1.5, (1, BLOCKS)))
    surprisal = rng.exponential(3, (1, BLOCKS))
    return pruning.block_contribution(attention / attention.sum(), surprisal, block_tokens=1)


def _first(waiting: deque[Request], *, now_s: float) -> int:
    arrival_s = np.array([request.arrival_s for request in waiting])
    gains = np.array([request.expected_gain_nats for request in waiting])
    left = np.array([STEPS_PER_REQUEST - request.steps for request in waiting])
    demand = priority.Demand(uncached_tokens=0, kv_tokens=BLOCKS, decode_tokens=left)
    pi = priority.priority(gains, priority.cost(demand, priority.Prices()))
    keys = priority.aged(pi, arrival_s, AGEING, now_s=now_s)
    return int(priority.order(keys, arrival_s=arrival_s, index=np.arange(len(waiting)))[0])


def _advance(request: Request, logits: FloatArray, arm: Arm, trace: Trace) -> None:
    """One turn of the loop: entropy, pruning, logits, temperature, entropy."""
    theta = pruning.threshold([request.signal_nats], SCHEDULE)
    dropped = float(pruning.keep_blocks(request.context, theta, arm.guards).dropped_mass[0])
    seen = logits * (1 - arm.flattening * dropped)
    setpoint = law.Setpoint(target_nats=TARGET_NATS, limits=arm.limits)
    temperature = request.state.temperature
    if arm.sampling is law.Law.SOLVE:
        temperature = law.solve(seen[None], setpoint).temperature[0]
    h, v = entropy_and_varentropy(seen, temperature)
    if arm.sampling is law.Law.FEEDBACK:
        request.state = law.feedback(
            request.state,
            entropy_nats=h,
            varentropy_nats2=v,
            setpoint=setpoint,
            tuning=law.FeedbackTuning(),
        )
    elif arm.sampling is law.Law.LITERAL:
        heat = law.literal_step(temperature, entropy_nats=h, eta=0.3, setpoint=setpoint)
        request.state = replace(request.state, temperature=heat)
    signal = entropy_and_varentropy(seen, 1.0)[0] if arm.signal_at_one else h
    exact = entropic_time.around(signal)
    request.time = entropic_time.advance(request.time, exact) if request.time else entropic_time.start(exact)
    decrement = max(0.0, request.signal_nats - float(signal))
    request.expected_gain_nats = 0.8 * request.expected_gain_nats + 0.2 * decrement
    request.signal_nats = float(signal)
    request.steps += 1
    trace.temperature.append(float(temperature))
    trace.entropy_nats.append(float(h))
    trace.dropped_mass.append(dropped)
    trace.tau_nats.append(float(request.time.tau_nats))


def _figures(trace: Trace) -> dict[str, float]:
    temperature, entropy = np.array(trace.temperature), np.array(trace.entropy_nats)
    half = len(trace.queue) // 2
    return {
        "lowest_ln_temperature": float(np.log(temperature.min())),
        "highest_ln_temperature": float(np.log(temperature.max())),
        "highest_entropy_nats": float(entropy.max()),
        "rmse_nats": float(np.sqrt(np.mean((entropy - TARGET_NATS) ** 2))),
        "highest_dropped_mass": float(max(trace.dropped_mass)),
        "highest_tau_nats": float(max(trace.tau_nats)),
        "longest_queue_first_half": int(max(trace.queue[:half])),
        "longest_queue": int(max(trace.queue)),
    }


def _couplings(seed: int) -> dict[str, dict[str, list[float]]]:
    """How far H is from H* as pruning reaches harder into the logits."""
    flattening = [0.0, 2.0, 4.0, 8.0]
    return {
        name: {
            "flattening": flattening,
            "rmse_nats": [
                _figures(run(replace(ARMS[name], flattening=f), seed=seed, steps=1000))["rmse_nats"]
                for f in flattening
            ],
        }
        for name in ("solve", "feedback", "literal")
    }
