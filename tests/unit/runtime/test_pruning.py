"""The policy of block-sparse attention, without SGLang."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eti_rank.control import pruning as law
from eti_rank.engine import wire
from eti_rank.runtime import pruning
from eti_rank.runtime.pruning import BlockPlan
from eti_rank.runtime.request_state import RequestState

PROMPT = tuple(range(100))
BARE: dict[str, Any] = {
    "block_tokens": 10,
    "first_blocks": 1,
    "last_blocks": 1,
    "min_blocks": 2,
    "max_dropped_mass": 0.99,
    "confident_theta": 2.0,
}


def control(**fields: Any) -> wire.PruningControl:
    return wire.PruningControl(**{**BARE, **fields})


def attention(context_tokens: int = 100, **heavy: float) -> torch.Tensor:
    """Weight 1 everywhere, more in the blocks of ten that are named ``b<index>``."""
    weights = torch.ones(context_tokens)
    for name, weight in heavy.items():
        block = int(name[1:])
        weights[block * 10 : block * 10 + 10] = weight
    return weights / weights.sum()


def measured(plan: BlockPlan, *layers: torch.Tensor, new_tokens: int = 100) -> BlockPlan:
    assert plan.begin_prompt(new_tokens) > 0
    for layer in layers:
        plan.add_layer(layer)
    return plan


def blocks_of(step: pruning.Step) -> set[int]:
    assert step.kept is not None
    return {int(position) // 10 for position in step.kept}


def test_blocks_below_the_threshold_go_and_everything_generated_stays() -> None:
    plan = measured(BlockPlan(control(), PROMPT), attention(b3=50, b6=50))
    step = plan.next_step(104, None)
    assert step.kept is not None
    assert step.kept.tolist() == [*range(10), *range(30, 40), *range(60, 70), *range(90, 104)]
    assert step.kept_fraction == pytest.approx(5 / 11)  # 11 blocks with the one that is being generated
    assert step.dropped_mass == pytest.approx(6 * 10 / (2 * 500 + 8 * 10))
    assert not step.measures


def test_layers_count_alike() -> None:
    one = measured(BlockPlan(control(), PROMPT), attention(b3=50), attention(b6=50))
    assert blocks_of(one.next_step(101, None)) == {0, 3, 6, 9, 10}


def test_theta_0_keeps_everything() -> None:
    plan = measured(BlockPlan(control(confident_theta=0.0), PROMPT), attention(b3=1000))
    step = plan.next_step(101, None)
    assert (step.kept, step.kept_fraction, step.dropped_mass) == (None, 1.0, 0.0)


def test_an_uncertain_model_looks_at_everything_and_an_unknown_entropy_counts_as_certain() -> None:
    plan = measured(
        BlockPlan(control(low_nats=0.5, high_nats=3.0, refresh_steps=99), PROMPT), attention(b3=50)
    )
    assert plan.next_step(101, 3.0).kept is None
    certain, unknown = plan.next_step(102, 0.5), plan.next_step(102, None)
    assert certain.kept is not None
    assert unknown.kept is not None
    assert certain.kept.tolist() == unknown.kept.tolist()


def test_every_so_many_steps_one_is_dense_and_measures() -> None:
    plan = measured(BlockPlan(control(refresh_steps=3), PROMPT), attention(b3=50))
    steps = []
    for number in range(8):
        step = plan.next_step(101 + number, None)
        steps.append("measures" if step.measures else "pruned")
        if step.measures:
            assert step.kept is None
            plan.add_layer(attention(101 + number, b7=50))
        else:
            assert blocks_of(step) == {0, 3 if number < 2 else 7, 9, 10}
    assert steps == ["pruned", "pruned", "measures", "pruned", "pruned", "measures", "pruned", "pruned"]


def test_refresh_at_every_step_is_dense() -> None:
    plan = measured(BlockPlan(control(refresh_steps=1), PROMPT), attention(b3=50))
    for context in range(101, 105):
        assert plan.next_step(context, None).measures
        plan.add_layer(attention(context, b3=50))


def test_without_a_measurement_the_first_step_makes_one() -> None:
    plan = BlockPlan(control(), PROMPT)
    assert plan.next_step(101, None).measures
    plan.add_layer(attention(101, b3=50))
    assert plan.next_step(102, None).kept is not None


def test_a_prompt_that_comes_again_is_measured_again() -> None:
    plan = measured(BlockPlan(control(refresh_steps=4), PROMPT), attention(b3=50))
    plan.next_step(101, None)
    plan.next_step(102, None)
    measured(plan, attention(103, b5=50), new_tokens=103)
    assert plan.last.kept is None
    for context in (104, 105, 106):
        assert blocks_of(plan.next_step(context, None)) == {0, 5, 9, 10}


def test_what_is_protected_stays() -> None:
    plan = measured(BlockPlan(control(protected=((15, 21), (70, 71), (500, 600))), PROMPT), attention(b3=50))
    assert blocks_of(plan.next_step(101, None)) == {0, 1, 2, 3, 7, 9, 10}


def test_the_block_that_the_prompt_ends_in_stays() -> None:
    plan = BlockPlan(control(last_blocks=0), tuple(range(95)))
    measured(plan, attention(95, b3=50))
    assert blocks_of(plan.next_step(96, None)) == {0, 3, 9}


@pytest.mark.parametrize(
    "fields", [{"min_blocks": 10}, {"protected": ((0, 100),)}], ids=["minimum", "protected"]
)
def test_nothing_is_measured_where_nothing_can_go(fields: dict[str, Any]) -> None:
    plan = BlockPlan(control(**fields), PROMPT)
    assert plan.begin_prompt(100) == 0
    assert plan.next_step(101, None) == pruning.DENSE


def test_the_window_is_what_is_computed_of_it() -> None:
    plan = BlockPlan(control(window_tokens=32), PROMPT)
    assert [plan.begin_prompt(new) for new in (100, 32, 5, 1)] == [32, 32, 5, 1]


def test_surprisal_is_the_share_in_the_prompt_or_the_model() -> None:
    assert pruning.surprisal_nats("none", PROMPT, None) is None
    unigram = pruning.surprisal_nats("unigram", (7, 7, 7, 9), None)
    assert unigram == pytest.approx([-math.log(0.75)] * 3 + [-math.log(0.25)])
    model = pruning.surprisal_nats("model", (7, 7, 9), (None, -2.0, 1e-9))
    assert model == pytest.approx([0.0, 2.0, 0.0])


def test_surprisal_moves_what_is_kept() -> None:
    common_then_rare = (1,) * 50 + tuple(range(10, 60))
    even = attention()
    plain = measured(BlockPlan(control(confident_theta=1.2), common_then_rare), even)
    weighted = measured(BlockPlan(control(confident_theta=1.2, surprisal="unigram"), common_then_rare), even)
    assert blocks_of(plain.next_step(101, None)) == {0, 9, 10}
    assert blocks_of(weighted.next_step(101, None)) == {0, 5, 6, 7, 8, 9, 10}


def test_the_model_s_surprisal_is_waited_for() -> None:
    plan = measured(BlockPlan(control(surprisal="model"), PROMPT), attention())
    assert plan.next_step(101, None).kept is None
    rare = [None, *(-9.0 if 40 <= place < 50 else -0.1 for place in range(1, 100))]
    assert blocks_of(plan.next_step(102, None, rare)) == {0, 4, 9, 10}


laws = settings(deadline=None, derandomize=True, max_examples=60)


@laws
@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 20), st.floats(0, 4), st.floats(0, 0.9))
def test_positions_and_figures_agree_with_the_law(
    seed: int, prompt_tokens: int, block_tokens: int, theta: float, eps: float
) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(prompt_tokens, 0.1))
    asked = control(block_tokens=block_tokens, confident_theta=theta, max_dropped_mass=eps)
    plan = BlockPlan(asked, tuple(range(prompt_tokens)))
    plan.begin_prompt(prompt_tokens)
    plan.add_layer(torch.from_numpy(weights))
    context = prompt_tokens + 3
    step = plan.next_step(context, None)
    if step.kept is None:
        assert (step.kept_fraction, step.dropped_mass) == (1.0, 0.0)
        return
    assert np.all(np.diff(step.kept) > 0)
    assert set(range(prompt_tokens, context)) <= set(step.kept.tolist())
    dropped = np.setdiff1d(np.arange(context), step.kept)
    assert step.dropped_mass == pytest.approx(weights[dropped].sum(), abs=1e-9)
    assert step.dropped_mass <= eps + 1e-9
    blocks = math.ceil(context / block_tokens)
    assert step.kept_fraction == pytest.approx(1 - len({*(dropped // block_tokens)}) / blocks)
    assert len(dropped) == block_tokens * len({*(dropped // block_tokens)})  # whole blocks only


def state_with(asked: wire.PruningControl | None) -> RequestState:
    return RequestState(wire.StepParams(decoding=wire.DecodingControl(pruning=asked)))


def test_what_the_last_step_left_out_can_be_read() -> None:
    assert pruning.last_step(state_with(None)) is None
    assert pruning.last_step(RequestState(wire.StepParams())) is None
    state = state_with(control())
    assert pruning.last_step(state) == (1.0, 0.0)
    plan = pruning.plan_of(state, PROMPT)
    assert plan is not None
    assert pruning.plan_of(state, PROMPT) is plan
    step = pruning.decide(state, measured(plan, attention(b3=50)), 101, None)
    assert pruning.last_step(state) == (step.kept_fraction, step.dropped_mass)
    assert step.kept_fraction < 1


def test_a_measurement_that_makes_no_sense_refuses_its_request_alone() -> None:
    state = state_with(control())
    plan = pruning.plan_of(state, PROMPT)
    assert plan is not None
    measured(plan, torch.full((100,), math.nan))
    assert pruning.decide(state, plan, 101, None) == pruning.DENSE
    assert state.refusal is not None
    assert "attention" in state.refusal
    assert pruning.plan_of(state, PROMPT) is None
    assert pruning.last_step(state) == (1.0, 0.0)


def test_entropy_reaches_the_threshold_through_the_state() -> None:
    state = state_with(control(refresh_steps=99))
    plan = pruning.plan_of(state, PROMPT)
    assert plan is not None
    measured(plan, attention(b3=50))
    state.entropy_nats = 9.0
    assert pruning.decide(state, plan, 101, None).kept is None
    state.entropy_nats = 0.0
    assert pruning.decide(state, plan, 102, None).kept is not None


def test_the_law_s_guards_are_the_control_s() -> None:
    asked = control(min_blocks=5)
    assert asked.guards == law.Guards(first_blocks=1, last_blocks=1, min_blocks=5, max_dropped_mass=0.99)
    plan = measured(BlockPlan(asked, PROMPT), attention(b3=50, b5=3, b6=2))
    assert blocks_of(plan.next_step(101, None)) == {0, 3, 5, 6, 9, 10}
