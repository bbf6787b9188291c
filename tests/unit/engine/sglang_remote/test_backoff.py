"""Waits between attempts."""

import itertools

import pytest

from eti_rank.engine.sglang_remote.backoff import pauses


def test_first_attempt_does_not_wait_and_waits_double_up_to_the_longest() -> None:
    assert list(pauses(6, 0.5, 3.0, chance=lambda: 0.0)) == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_chance_takes_up_to_half() -> None:
    assert list(pauses(3, 0.5, 3.0, chance=lambda: 0.5)) == pytest.approx([0.0, 0.375, 0.75])
    drawn = list(itertools.chain.from_iterable(pauses(2, 1.0, 1.0) for _ in range(200)))[1::2]
    assert 0.5 < min(drawn) < 0.6 < 0.9 < max(drawn) <= 1.0


def test_one_attempt_is_one() -> None:
    assert list(pauses(1, 0.5, 3.0)) == [0.0]
