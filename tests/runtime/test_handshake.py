"""The plugin runs where it should, only there, and its absence is noticed."""

import itertools
from pathlib import Path

import pytest

from eti_rank import __version__
from eti_rank.engine import wire
from eti_rank.engine.protocol import EngineState, Labels, Likelihood, ScoringStep
from eti_rank.engine.sglang_local import hook_reports
from eti_rank.errors import EngineUnavailable, HookError
from eti_rank.runtime import targets
from eti_rank.settings import EngineSettings
from tests.runtime.conftest import started

PROMPT = tuple(range(20, 60))

HOOKS = tuple(sorted((wire.TELEMETRY, *EngineSettings().hooks)))


async def test_every_step_comes_back_stamped(tiny_llama: Path) -> None:
    async with started(tiny_llama) as engine:
        assert engine.description.hooks == HOOKS
        label = await engine.score(ScoringStep(step_id="a", token_ids=PROMPT, readout=Labels((5, 6))))
        likelihood = await engine.score(ScoringStep(step_id="b", token_ids=PROMPT, readout=Likelihood(30)))
    assert label.hooks == HOOKS
    assert set(HOOKS) - set(likelihood.hooks) <= {wire.SAMPLING}  # nothing is sampled


async def test_plugin_is_opt_in(tiny_llama: Path) -> None:
    async with started(tiny_llama, plugin=False) as engine:
        evidence = await engine.score(ScoringStep(step_id="a", token_ids=PROMPT, readout=Labels((5,))))
        assert engine.description.hooks == evidence.hooks == ()


async def test_plugin_that_sglang_skips_is_a_start_error(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "another")
    with pytest.raises(HookError, match="without a stamp"):
        async with started(tiny_llama):
            pass


async def test_moved_target_is_a_start_error_that_names_it(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = targets.Target(wire.TELEMETRY, "sglang.srt.managers.scheduler.Scheduler.gone", ("self",))
    monkeypatch.setattr(targets.require_targets, "__defaults__", ((*targets.TARGETS, moved),))
    with pytest.raises(HookError, match=r"Scheduler\.gone \(telemetry\): not there"):
        async with started(tiny_llama):
            pass


async def test_checkpoint_that_is_not_there_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="did not start"):
        async with started(tmp_path / "missing"):
            pass


async def test_engine_starts_once(tiny_llama: Path) -> None:
    async with started(tiny_llama) as engine:
        with pytest.raises(EngineUnavailable, match="starts once"):
            await engine.start()
        assert engine.state is EngineState.READY


def test_every_target_is_as_expected_in_the_pinned_sglang() -> None:
    reports = hook_reports()
    assert {report.path for report in reports} == {target.path for target in targets.TARGETS}
    assert [report for report in reports if not report.ok] == []


def test_stamp_carries_this_version() -> None:
    wire.check_stamp(wire.Stamp(__version__, (wire.TELEMETRY,)), plugin=__version__, hooks=[wire.TELEMETRY])


async def test_every_hook_that_can_be_installed_has_targets(tiny_llama: Path) -> None:
    async with started(tiny_llama):  # SGLang is imported with the right environment
        from eti_rank.runtime.plugin import INSTALLERS

        assert set(INSTALLERS) <= targets.names()


@pytest.mark.parametrize(
    "hooks",
    [
        pytest.param(chosen, id="+".join(chosen) or "none")
        for count in range(4)
        for chosen in itertools.combinations(("scheduling", "sampling", "attention"), count)
    ],
)
async def test_each_hook_is_on_or_off_by_itself(tiny_llama: Path, hooks: tuple[str, ...]) -> None:
    """Whichever were on in this process before."""
    async with started(tiny_llama, hooks=hooks) as engine:
        assert engine.description.hooks == tuple(sorted((wire.TELEMETRY, *hooks)))
        evidence = await engine.score(ScoringStep(step_id="a", token_ids=PROMPT, readout=Labels((5, 6))))
    assert set(evidence.hooks) == {wire.TELEMETRY, *hooks}
