"""Which blocks of its prompt a generating request leaves out, step by step: the policy of both backends.

One list of kept blocks serves all heads and layers of a step, as FlashInfer plans once per step
(docs/decisions/006). It comes from the attention of the prompt's last positions, averaged over heads and
layers, and follows the entropy of the step before; the laws are `control.pruning`.

The walk of one request: `begin_prompt`, then `add_layer` once per layer while its prompt is prefilled;
then `next_step` before each decoding step, which says what to attend to. Every `refresh_steps` steps one
looks at everything, and its query measures the blocks anew (`add_layer` again).

Only whole blocks of the prompt can go: the block that the prompt ends in and every generated token stay.

Where the entropy is not known (the sampling hook is off, or this is its first step), theta is the
confident one, `Schedule.confident_theta`: without the hook the schedule becomes a constant.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from eti_rank.control import pruning
from eti_rank.engine import wire
from eti_rank.errors import DomainError
from eti_rank.runtime.request_state import RequestState

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one step of a request attends to."""

    kept: Positions | None = None
    """Positions of the context, ascending, this step's own included; None attends to everything."""
    measures: bool = False
    """Whether the step's query measures the blocks; then nothing is left out."""
    kept_fraction: float = 1.0
    """Of the context's blocks."""
    dropped_mass: float = 0.0
    """Attention that the left-out blocks had when they were measured."""


DENSE: Final = Step()


class BlockPlan:
    """Mutable: what is known of the blocks of one request, and what its last step attended to.

    Args:
        control: what the request asks for.
        prompt: its token ids.
    """

    def __init__(self, control: wire.PruningControl, prompt: Sequence[int]) -> None:
        self._control = control
        self._prompt = prompt
        self._blocks: pruning.BlockContribution | None = None
        self._attention: Tensor | None = None
        self._layers = 0
        self._steps = 0
        self._protected = _protected(control, len(prompt))
        self._is_active = bool((~self._protected).any()) and len(self._protected) > control.min_blocks
        self.last = DENSE

    def begin_prompt(self, new_tokens: int) -> int:
        """The prompt ends in this forward pass, and so many of its positions are computed in it.

        Returns how many of the last ones measure the blocks; 0 where nothing could be left out anyway.
        After a retraction the prompt comes again, with the tokens generated so far, and so does this.
        """
        self.last = DENSE
        self._begin_measuring()
        return min(new_tokens, self._control.window_tokens) if self._is_active else 0

    def add_layer(self, attention: Tensor) -> None:
        """Attention to each position of the context, averaged over one layer's heads: [tokens], total 1."""
        self._attention = attention if self._attention is None else self._attention + attention
        self._layers += 1

    def next_step(
        self,
        context_tokens: int,
        entropy_nats: float | None,
        log_probabilities: Sequence[float | None] | None = None,
    ) -> Step:
        """Decide what the next decoding step attends to.

        Args:
            context_tokens: prompt and generated tokens, the one that attends included.
            entropy_nats: of the last step; None where it is not known.
            log_probabilities: of the prompt's tokens under the model, for `surprisal="model"`. While they
                are not there, the steps look at everything.

        Raises:
            DomainError: what was measured makes no sense, NaN for instance.
        """
        self.last = self._next_step(context_tokens, entropy_nats, log_probabilities)
        return self.last

    def _next_step(
        self,
        context_tokens: int,
        entropy_nats: float | None,
        log_probabilities: Sequence[float | None] | None,
    ) -> Step:
        if not self._is_active:
            return DENSE
        if self._control.surprisal == "model" and log_probabilities is None:
            return DENSE
        if self._attention is not None:
            self._settle(log_probabilities)
        self._steps += 1
        if self._blocks is None or self._steps >= self._control.refresh_steps:
            self._begin_measuring()
            return Step(measures=True)
        return self._prune(self._blocks, context_tokens, entropy_nats)

    def _begin_measuring(self) -> None:
        self._attention, self._layers, self._steps = None, 0, 0

    def _settle(self, log_probabilities: Sequence[float | None] | None) -> None:
        """From what the layers have added to what each block of the prompt contributes."""
        assert self._attention is not None
        attention = (self._attention / self._layers).double().cpu().numpy()
        self._attention = None
        surprisal = surprisal_nats(self._control.surprisal, self._prompt, log_probabilities)
        if surprisal is not None:
            surprisal = np.pad(surprisal, (0, len(attention) - len(surprisal)))[None]
        measured = pruning.block_contribution(
            attention[None], surprisal, block_tokens=self._control.block_tokens
        )
        count = len(self._protected)
        self._blocks = pruning.BlockContribution(
            contribution=measured.contribution[:, :count], mass=measured.mass[:, :count]
        )

    def _prune(
        self, blocks: pruning.BlockContribution, context_tokens: int, entropy_nats: float | None
    ) -> Step:
        control = self._control
        theta = (
            control.confident_theta
            if entropy_nats is None
            else pruning.threshold([entropy_nats], control.schedule)
        )
        kept = pruning.keep_blocks(blocks, theta, control.guards, protected=self._protected)
        if kept.mask.all():
            return DENSE
        in_prompt = np.flatnonzero(np.repeat(kept.mask[0], control.block_tokens)[: len(self._prompt)])
        generated = np.arange(len(self._prompt), context_tokens)
        total = -(-context_tokens // control.block_tokens)
        return Step(
            kept=np.concatenate([in_prompt, generated]),
            kept_fraction=1 - int((~kept.mask).sum()) / total,
            dropped_mass=float(kept.dropped_mass[0]),
        )


def surprisal_nats(
    source: Literal["none", "unigram", "model"],
    prompt: Sequence[int],
    log_probabilities: Sequence[float | None] | None,
) -> npt.NDArray[np.float64] | None:
    """-ln p of each token of a prompt; None where every token counts alike.

    Args:
        source: `unigram` is the token's share in the prompt itself.
        prompt: token ids.
        log_probabilities: for `model`, one per token; None for the first, which nothing predicts: 0.
    """
    if source == "none":
        return None
    if source == "unigram":
        counts = Counter(prompt)
        share = {token: count / len(prompt) for token, count in counts.items()}
        return -np.log([share[token] for token in prompt])
    assert log_probabilities is not None
    return np.maximum([-(value or 0.0) for value in log_probabilities], 0.0)


def plan_of(state: RequestState, prompt: Sequence[int]) -> BlockPlan | None:
    """The plan of a request, made when it is first asked for; None where nothing may be left out."""
    if state.control is None or state.control.pruning is None or state.refusal is not None:
        return None
    if state.pruning is None:
        state.pruning = BlockPlan(state.control.pruning, prompt)
    plan: BlockPlan = state.pruning
    return plan


def last_step(state: RequestState) -> tuple[float, float] | None:
    """Kept fraction and dropped mass of the last step; (1, 0) for a dense one; None without a control."""
    if state.control is None or state.control.pruning is None:
        return None
    step: Step = state.pruning.last if state.pruning is not None else DENSE
    return step.kept_fraction, step.dropped_mass


def refuse(state: RequestState, reason: str) -> None:
    """Leave the request alone from now on: it attends to everything, and its stamp says why."""
    state.refusal, state.pruning = reason, None


def decide(
    state: RequestState,
    plan: BlockPlan,
    context_tokens: int,
    log_probabilities: Sequence[float | None] | None,
) -> Step:
    """`BlockPlan.next_step` for a batch, where one request must not end the others with an error."""
    try:
        return plan.next_step(context_tokens, state.entropy_nats, log_probabilities)
    except DomainError as error:
        refuse(state, f"block-sparse attention: {error}")
        return DENSE


def _protected(control: wire.PruningControl, prompt_tokens: int) -> npt.NDArray[np.bool_]:
    """Per block of the prompt: it must stay, for it is protected or generated tokens continue it."""
    size = control.block_tokens
    protected = np.zeros(-(-prompt_tokens // size), dtype=np.bool_)
    protected[-1:] = prompt_tokens % size != 0
    for begin, end in control.protected:
        protected[begin // size : -(-end // size)] = True
    return protected
