import numpy as np
import pytest

from eti_rank.control import rows
from eti_rank.control import temperature as law
from eti_rank.errors import DomainError


def test_split_undoes_stack_for_nested_records() -> None:
    setpoints = [
        law.Setpoint(target_nats=1.0 + row, limits=law.TemperatureLimits(low=0.1 * (row + 1), high=2.0))
        for row in range(3)
    ]
    stacked = rows.stack(setpoints)
    np.testing.assert_array_equal(stacked.target_nats, [1, 2, 3])
    np.testing.assert_allclose(stacked.limits.low, [0.1, 0.2, 0.3])
    for one, other in zip(rows.split(stacked, 3), setpoints, strict=True):
        assert one.target_nats == other.target_nats
        assert one.limits.low == other.limits.low


def test_rows_may_leave_and_join_between_steps() -> None:
    tuning, setpoint = law.FeedbackTuning(), law.Setpoint(target_nats=1.0)

    def step(state: law.FeedbackState, entropy: np.ndarray) -> law.FeedbackState:
        return law.feedback(
            state, entropy_nats=entropy, varentropy_nats2=entropy, setpoint=setpoint, tuning=tuning
        )

    first, second = rows.split(step(law.start_feedback(np.ones(2)), np.array([2.0, 0.5])), 2)
    joined = rows.stack([second, law.start_feedback()])
    after = step(joined, np.array([0.7, 3.0]))
    alone = [step(second, np.array(0.7)), step(law.start_feedback(), np.array(3.0))]
    np.testing.assert_array_equal(after.temperature, [state.temperature for state in alone])
    np.testing.assert_array_equal(after.steps, [2, 1])
    assert first.steps == 1


@pytest.mark.parametrize("records", [[], [law.FeedbackTuning(), law.TemperatureLimits()]])
def test_only_records_of_one_class_stack(records: list[object]) -> None:
    with pytest.raises(DomainError, match="records of one class"):
        rows.stack(records)


def test_only_records_stack() -> None:
    with pytest.raises(DomainError, match="rows are dataclasses, got int"):
        rows.stack([1, 2])
