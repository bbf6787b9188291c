"""The arithmetic of the ablation: ratios, their intervals, and the table in the page."""

import numpy as np
import pytest

from eval import ablation, ablation_report


def test_a_constant_ratio_has_no_width() -> None:
    found = ablation.ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found[""] == pytest.approx(2.0)
    assert found["_low"] == pytest.approx(found["_high"]) == pytest.approx(2.0)


def test_the_interval_is_students_on_logarithms() -> None:
    found = ablation.ratio([1.0, 2.0], [1.0, 1.0])
    half = 12.7062 * np.log(2) / 2  # t(0.975, 1) times the standard error
    assert found[""] == pytest.approx(np.sqrt(2))
    assert np.log(found["_high"]) == pytest.approx(np.log(2) / 2 + half, rel=1e-4)


def test_groundedness_counts_words_of_the_context() -> None:
    assert ablation.groundedness("Yeast makes carbon gas", "The YEAST makes gas.") == pytest.approx(2 / 3)
    assert ablation.groundedness("a b c", "anything") == 0.0


def test_all_eight_arms_are_there_and_use_four_engines() -> None:
    assert len(set(ablation.ARMS)) == 8
    settings = ablation.engine_settings()
    assert {arm.engine for arm in ablation.ARMS} == set(settings)
    assert settings["00"]["hooks"] == ["sampling"]
    assert settings["11"]["hooks"] == ["scheduling", "sampling", "attention"]


def test_the_table_has_a_line_per_arm_and_the_papers_figures() -> None:
    rows = ablation.table(
        [
            {"arm": arm, "columns": dict.fromkeys(ablation.COLUMNS, 1.0 + load)}
            for arm in ablation.ARMS
            for load in range(2)
        ]
    )
    lines = ablation_report.markdown(rows).splitlines()
    assert len(lines) == 2 + 8
    assert lines[2].startswith("| all off | **1.00** (1.00 to 1.00, paper 1.00)")
    assert "paper 1.55" in lines[-1]
    assert "paper" not in lines[-2]
