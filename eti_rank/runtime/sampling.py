"""Measures the entropy of every decoding step, and holds it at a target where a request asks for that.

Seams: `ModelRunner.sample` has the model's own logits, before penalties, bias and grammar change them;
`Sampler.forward` has what will be sampled from, and the temperatures to sample at.

Only rows whose request carries a `DecodingControl` cost anything. Greedy rows are measured and never
steered. A controlled row's temperature is written into SGLang's own vector of temperatures before each
step, so that top-p, top-k, penalties and grammars work as they do without us.

What is measured at temperature 1 drives the loop (entropic time, the threshold of attention, the worth of
going on): an entropy that a law holds at a target tells nobody anything.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from eti_kernels import backends
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

from eti_rank.control import entropic_time, temperature
from eti_rank.control.entropy_bounds import EntropyBounds, entropy_bounds
from eti_rank.control.rows import stack
from eti_rank.control.temperature import Law
from eti_rank.engine import wire
from eti_rank.runtime import forward_rows, reports
from eti_rank.runtime.forward_rows import Row

SAMPLE: Final = "sglang.srt.model_executor.model_runner.ModelRunner.sample"
SAMPLER_FORWARD: Final = "sglang.srt.layers.sampler.Sampler.forward"
SOLVE_TOLERANCE_NATS: Final = 1e-4
"""Above the rounding of float32 logits."""
MARGIN_NATS: Final = 1e-4
"""How far the entropy of float32 logits may be off; a decrement below it is not counted as progress."""

RECENT_SHARE: Final = 0.1
"""Weight of the latest step in the mean of the last ones."""


class Measured(NamedTuple):
    """Statistics of some rows at some temperatures, [B] each, float64."""

    entropy_nats: np.ndarray
    varentropy_nats2: np.ndarray


class Steering(NamedTuple):
    """What one law does to some rows at one step, [B] each."""

    temperature: np.ndarray
    entropy_nats: np.ndarray
    """At that temperature."""
    reached: np.ndarray | None
    """Whether the target was reached; None for laws that do not aim at each step."""


class SamplingHook:
    """The hook; keeps the rows of the step between its two seams, and nothing else."""

    def __init__(self) -> None:
        self._steered: list[tuple[int, Row]] = []

    def sample(
        self, original: Callable[..., Tensor], runner: Any, logits_output: Any, forward_batch: Any
    ) -> Tensor:
        """Around `ModelRunner.sample`: measure the model's logits, then let SGLang sample."""
        rows = list(enumerate(forward_rows.of(forward_batch)))
        for _, row in rows:
            row.state.ran.add(wire.SAMPLING)
        ours = [(i, row) for i, row in rows if row.state.control is not None and row.ends_prompt]
        if not ours:
            return original(runner, logits_output, forward_batch)
        ours = _observe(logits_output.next_token_logits, ours)
        self._steered = [(i, row) for i, row in ours if not row.is_greedy and _law(row) is not Law.OFF]
        try:
            return original(runner, logits_output, forward_batch)
        finally:
            self._steered = []

    def steer(
        self,
        original: Callable[..., Any],
        sampler: Any,
        logits_output: Any,
        sampling_info: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Around `Sampler.forward`: set the temperatures of the steered rows for this step."""
        if self._steered:
            _steer(logits_output.next_token_logits, sampling_info.temperatures, self._steered)
        return original(sampler, logits_output, sampling_info, *args, **kwargs)


def install(_config: wire.PluginConfig) -> None:
    """Register both hooks; SGLang applies them after all plugins are loaded."""
    hook = SamplingHook()
    HookRegistry.register(SAMPLE, hook.sample, HookType.AROUND)
    HookRegistry.register(SAMPLER_FORWARD, hook.steer, HookType.AROUND)


def _measure(logits: Tensor, temperatures: Tensor | float = 1.0) -> Measured:
    row_entropy = backends.load("row_entropy", backends.fitting(logits.device.type))
    statistics = row_entropy(logits, k=1, temperature=temperatures)
    return Measured(*(_float64(field) for field in (statistics.entropy, statistics.varentropy)))


def _float64(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()


def _observe(logits: Tensor, asking: Sequence[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Write entropy and entropic time of the model's own distribution into states and reports.

    A row whose logits are no distribution is refused in its stamp and left to SGLang: an error here would
    end the scheduler for all requests. Returns the other rows.
    """
    measured = _measure(logits[[i for i, _ in asking]])
    sound = np.isfinite(measured.entropy_nats) & np.isfinite(measured.varentropy_nats2)
    for _, row in (each for each, is_sound in zip(asking, sound, strict=True) if not is_sound):
        row.state.refusal = "the model's logits are not finite"
    rows = [each for each, is_sound in zip(asking, sound, strict=True) if is_sound]
    measured = Measured(*(values[sound] for values in measured))
    bounds = _bounds(logits[[i for i, _ in rows]], [row for _, row in rows])
    for place, (_, row) in enumerate(rows):
        entropy, state = float(measured.entropy_nats[place]), row.state
        interval = entropic_time.around(entropy, MARGIN_NATS)
        recent = entropy if state.recent_entropy_nats is None else state.recent_entropy_nats
        state.entropy_nats, state.recent_entropy_nats = entropy, recent + RECENT_SHARE * (entropy - recent)
        state.progress = (
            entropic_time.start(interval, estimate_nats=entropy)
            if state.progress is None
            else entropic_time.advance(state.progress, interval, estimate_nats=entropy)
        )
        reports.record(
            row,
            entropy_nats=entropy,
            varentropy_nats2=float(measured.varentropy_nats2[place]),
            bounds_nats=bounds.get(place),
            temperature=0.0 if row.is_greedy else row.request.sampling_params.temperature,
            entropic_time_nats=float(state.progress.tau_nats),
        )
    return rows


def _bounds(logits: Tensor, rows: Sequence[Row]) -> dict[int, tuple[float, float]]:
    """Intervals of the rows that ask for them, by place."""
    asked = {
        place: k
        for place, row in enumerate(rows)
        if row.state.control and (k := row.state.control.bounds_top_k)
    }
    found = {}
    vocabulary = logits.shape[-1]
    for place, k in asked.items():
        log_p = logits[place].double().log_softmax(-1)
        top = log_p.topk(min(k, vocabulary)).values
        interval: EntropyBounds = entropy_bounds(_float64(top), vocabulary=vocabulary)
        found[place] = (float(interval.lower_nats), float(interval.upper_nats))
    return found


def _steer(logits: Tensor, temperatures: Tensor, rows: Sequence[tuple[int, Row]]) -> None:
    """Choose this step's temperature of each row, write it, and report what it leads to.

    Args:
        logits: [B, V], what will be sampled from; -inf where a grammar forbids a token.
        temperatures: [B, 1], changed in place.
        rows: those to steer, with their places in the batch.
    """
    by_law: dict[Law, list[tuple[int, Row]]] = {}
    for i, row in rows:
        by_law.setdefault(_law(row), []).append((i, row))
    for law, chosen in by_law.items():
        places = [i for i, _ in chosen]
        steer = _solve if law is Law.SOLVE else _follow
        heat, measured, reached = steer(logits[places], [row for _, row in chosen])
        temperatures[places, 0] = torch.as_tensor(heat, dtype=temperatures.dtype, device=temperatures.device)
        for place, (_, row) in enumerate(chosen):
            reports.record(
                row,
                temperature=float(heat[place]),
                sampled_entropy_nats=float(measured[place]),
                reached=None if reached is None else bool(reached[place]),
            )


def _law(row: Row) -> Law:
    control = row.state.control
    return Law(control.temperature.law) if control and control.temperature else Law.OFF


def _control(row: Row) -> wire.TemperatureControl:
    control = row.state.control
    assert control is not None
    assert control.temperature is not None
    return control.temperature


def _solve(logits: Tensor, rows: Sequence[Row]) -> Steering:
    """Temperatures at which this step's own entropy is the target."""
    guesses = [row.state.heat or _control(row).start for row in rows]

    def statistics(heat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = _measure(logits, torch.as_tensor(heat, device=logits.device))
        return found.entropy_nats, found.varentropy_nats2

    solution = temperature.solve_with(
        statistics,
        stack([_control(row).setpoint for row in rows]),
        guess=guesses,
        tolerance_nats=SOLVE_TOLERANCE_NATS,
    )
    for row, heat in zip(rows, solution.temperature, strict=True):
        row.state.heat = float(heat)
    return Steering(solution.temperature, solution.entropy_nats, solution.reached)


def _follow(logits: Tensor, rows: Sequence[Row]) -> Steering:
    """Temperatures that the steps before have led to; what they do now moves those of the next step."""
    states = [row.state.feedback or temperature.start_feedback(_control(row).start) for row in rows]
    heat = np.array([float(state.temperature) for state in states])
    measured = _measure(logits, torch.as_tensor(heat, device=logits.device))
    for place, (row, state) in enumerate(zip(rows, states, strict=True)):
        row.state.feedback = _next(state, measured, place, row)
    return Steering(heat, measured.entropy_nats, None)


def _next(
    state: temperature.FeedbackState, measured: Measured, place: int, row: Row
) -> temperature.FeedbackState:
    control, entropy_nats = _control(row), measured.entropy_nats[place]
    if _law(row) is Law.FEEDBACK:
        return temperature.feedback(
            state,
            entropy_nats=entropy_nats,
            varentropy_nats2=measured.varentropy_nats2[place],
            setpoint=control.setpoint,
            tuning=control.tuning,
        )
    heated = temperature.literal_step(
        state.temperature, entropy_nats=entropy_nats, eta=control.gain, setpoint=control.setpoint
    )
    return temperature.FeedbackState(heated, state.varentropy_quantile_nats2, state.steps + 1)
