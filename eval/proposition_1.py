"""The paper's Proposition 1: the temperature law contracts to H* if eta * L < 1.

L is the largest slope of H over ln T, which is the varentropy V. Shown: with the minus sign it holds, rate
|1 - eta V| per step, up to eta V = 2, beyond which the loop cycles; with the sign as printed it holds for no
eta. And what neither sign can do: on a stream whose logits change from step to step, the loop holds the
average of H, while `solve` holds H itself.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eti_rank.control import temperature as law
from eti_rank.control.domain import FloatArray
from eti_rank.control.entropy import entropy_and_varentropy

LIMITS = law.TemperatureLimits(low=0.1, high=3.0)
TARGET_NATS = 2.0
VOCABULARY = 1000
WARM_UP_STEPS = 200
LITERAL = "literal"


def study(seed: int) -> tuple[dict[str, object], Figure]:
    """Figures for the record, and the picture."""
    rng = np.random.default_rng(seed)
    picture = Figure(figsize=(13, 3.8), layout="constrained")
    left, middle, right = picture.subplots(1, 3)
    return {
        "condition": "minus sign and eta V < 2 (monotone below 1), logits that stay as they are",
        "fails": "the sign as printed, at any eta; the minus sign above eta V = 2; changing logits",
        "contraction": _contraction(rng, rows=100),
        "static_row": _static_row(rng, left),
        "rate": _rates(rng, middle),
        "stream": _stream(rng, right, steps=3000),
    }, picture


def _path(*, sign: str, logits: FloatArray, eta: float, begin: float, steps: int) -> FloatArray:
    """Temperatures [steps], the first being `begin`."""
    setpoint = law.Setpoint(target_nats=TARGET_NATS, limits=LIMITS)
    step = law.literal_step if sign == LITERAL else law.feedback_step
    path = [np.asarray(begin)]
    while len(path) < steps:
        entropy_nats = entropy_and_varentropy(logits, path[-1])[0]
        path.append(step(path[-1], entropy_nats=entropy_nats, eta=eta, setpoint=setpoint))
    return np.array(path)


def _fixed_point(logits: FloatArray) -> tuple[float, float]:
    """The temperature that holds the target, and the varentropy there."""
    found = law.solve(logits[None], law.Setpoint(target_nats=TARGET_NATS, limits=LIMITS))
    temperature = float(found.temperature[0])
    return temperature, float(entropy_and_varentropy(logits, temperature)[1])


def _random_row(rng: np.random.Generator) -> FloatArray:
    return rng.normal(0, rng.uniform(2, 4), VOCABULARY)


def _contraction(rng: np.random.Generator, *, rows: int) -> dict[str, object]:
    """The proposition word for word: eta * L < 1 with L over the whole range of temperatures."""
    shrinking, literal_at_limit = 0, 0
    for _ in range(rows):
        logits = _random_row(rng)
        held, _ = _fixed_point(logits)
        grid = np.geomspace(LIMITS.low, LIMITS.high, 200)
        steepest = max(float(entropy_and_varentropy(logits, t)[1]) for t in grid)
        eta, begin = rng.uniform(0.1, 0.99) / steepest, float(rng.choice(grid))
        gaps = np.log(_path(sign="minus", logits=logits, eta=eta, begin=begin, steps=60) / held)
        closer = np.abs(gaps[1:]) < np.abs(gaps[:-1])
        same_side = gaps[1:] * gaps[:-1] >= 0
        shrinking += bool((closer & same_side | (np.abs(gaps[:-1]) < 1e-6)).all())
        last = _path(sign=LITERAL, logits=logits, eta=eta, begin=begin, steps=300)[-1]
        literal_at_limit += last in {LIMITS.low, LIMITS.high}
    return {
        "rows": rows,
        "minus_sign_shrinks_at_every_step": shrinking,
        "literal_ends_at_a_limit": literal_at_limit,
    }


def _static_row(rng: np.random.Generator, axes: Axes) -> list[dict[str, object]]:
    logits = _random_row(rng)
    held, varentropy = _fixed_point(logits)
    figures: list[dict[str, object]] = []
    for sign, eta_v in (("minus", 0.4), ("minus", 1.0), ("minus", 1.9), ("minus", 2.5), (LITERAL, 0.4)):
        path = _path(sign=sign, logits=logits, eta=eta_v / varentropy, begin=1.1 * held, steps=300)
        axes.plot(path[:40], label=f"{sign}, ηV = {eta_v}", lw=1.2)
        figures.append(
            {
                "sign": sign,
                "eta_v": eta_v,
                "final_temperature": float(path[-1]),
                "final_gap": float(abs(np.log(path[-1] / held))),
                "final_step": float(abs(np.log(path[-1] / path[-2]))),
            }
        )
    axes.axhline(held, color="black", lw=0.6, ls=":")
    axes.set(title="one row of logits", xlabel="step", ylabel="T", ylim=(0, 1.5))
    axes.legend(fontsize=7)
    return figures


def _rates(rng: np.random.Generator, axes: Axes) -> list[dict[str, object]]:
    """Factor by which a small gap in ln T changes per step."""
    logits = _random_row(rng)
    held, varentropy = _fixed_point(logits)
    grid = np.linspace(0.1, 2.9, 29)
    figures: list[dict[str, object]] = []
    for sign, theory in (("minus", np.abs(1 - grid)), (LITERAL, 1 + grid)):
        rates = []
        for eta_v in grid:
            path = _path(sign=sign, logits=logits, eta=eta_v / varentropy, begin=held * np.exp(1e-4), steps=2)
            rates.append(float(abs(np.log(path[1] / held) / np.log(path[0] / held))))
        axes.plot(grid, theory, color="black", lw=0.6)
        axes.plot(grid, rates, "o", ms=3, label=f"{sign}, measured")
        figures.append({"sign": sign, "largest_difference_from_theory": float(np.abs(rates - theory).max())})
    axes.axhspan(0, 1, color="tab:green", alpha=0.12)
    axes.set(title="change of the gap per step (green: contracts)", xlabel="ηV", ylabel="factor", ylim=(0, 4))
    axes.legend(fontsize=7)
    return figures


def _stream(rng: np.random.Generator, axes: Axes, *, steps: int) -> dict[str, dict[str, float]]:
    """Logits whose spread wanders from step to step, as certain and open positions of a text alternate."""
    spread, rows = 0.0, []
    for _ in range(steps):
        spread = 0.6 * spread + 0.8 * rng.normal()
        rows.append(rng.normal(0, 1, VOCABULARY) * np.exp(0.9 + 0.35 * spread))
    held = {name: _held(rows, name) for name in ("literal", "feedback", "same-step V", "solve")}
    held["fixed, tuned"] = _held(rows, _best_fixed(rows))
    for name in ("literal", "fixed, tuned", "feedback", "solve"):
        axes.plot(held[name][-60:], label=name, lw=1.2)
    axes.axhline(TARGET_NATS, color="black", lw=0.6, ls=":")
    axes.set(title="a stream of changing logits", xlabel="step", ylabel="H (nats)")
    axes.legend(fontsize=7)
    return {
        name: {
            "mean_nats": float(h.mean()),
            "rmse_nats": float(np.sqrt(np.mean((h - TARGET_NATS) ** 2))),
            "variance_nats2": float(h.var()),
        }
        for name, h in held.items()
    }


def _held(rows: list[FloatArray], name: str | float) -> FloatArray:
    """Entropy at every step after the warm-up under a law, or under a fixed temperature."""
    setpoint = law.Setpoint(target_nats=TARGET_NATS, limits=LIMITS)
    state, held = law.start_feedback(1.0 if isinstance(name, str) else name), []
    for logits in rows:
        temperature = state.temperature
        if name == "solve":
            temperature = law.solve(logits[None], setpoint).temperature[0]
        h, v = entropy_and_varentropy(logits, temperature)
        held.append(float(h))
        if name == "feedback":
            tuning = law.FeedbackTuning()
            state = law.feedback(state, entropy_nats=h, varentropy_nats2=v, setpoint=setpoint, tuning=tuning)
        elif name == LITERAL:
            state = law.start_feedback(
                law.literal_step(temperature, entropy_nats=h, eta=0.1, setpoint=setpoint)
            )
        elif name == "same-step V":
            state = law.start_feedback(
                law.feedback_step(
                    temperature, entropy_nats=h, eta=0.5 / max(float(v), 1e-3), setpoint=setpoint
                )
            )
    return np.array(held[WARM_UP_STEPS:])


def _best_fixed(rows: list[FloatArray]) -> float:
    """The one temperature, chosen in hindsight, at which the mean entropy is the target."""
    whole = np.array(rows[WARM_UP_STEPS:])

    def mean(temperature: FloatArray) -> tuple[FloatArray, FloatArray]:
        h, v = entropy_and_varentropy(whole, temperature)
        return np.atleast_1d(h.mean()), np.atleast_1d(v.mean())

    setpoint = law.Setpoint(target_nats=TARGET_NATS, limits=LIMITS)
    return float(law.solve_with(mean, setpoint, guess=np.ones(1)).temperature[0])
