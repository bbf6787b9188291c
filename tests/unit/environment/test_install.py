import subprocess
from pathlib import Path

import pytest

from eti_rank.environment import install


def test_gpu_machines_get_sglang_with_its_own_dependencies() -> None:
    gpu = [step for step in install.steps("cuda", dev=False) if "sglang==" in _requirements(step)]
    assert len(gpu) == 1
    assert "--no-deps" not in gpu[0].pip


def test_cpu_machines_get_sglang_without_dependencies_and_the_stand_ins() -> None:
    steps = install.steps("cpu", dev=False)
    sglang = [step for step in steps if "sglang==" in _requirements(step)]
    assert "--no-deps" in sglang[0].pip
    assert any("stand-ins" in step.name for step in steps)


def test_both_devices_get_the_same_sglang() -> None:
    pins = {
        device: [
            line
            for step in install.steps(device, dev=False)
            for line in _requirements(step).splitlines()
            if line.startswith("sglang==")
        ]
        for device in ("cpu", "cuda")
    }
    assert pins["cpu"] == pins["cuda"] != []


def test_second_run_does_nothing_and_a_changed_pin_repeats_from_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = [tmp_path / f"{name}.txt" for name in "abc"]
    for pin in pins:
        pin.write_text("x==1")
    ran = _record_pip(monkeypatch, pins)
    environment = tmp_path / "env"
    install.install(environment, "cpu", dev=False)
    assert ran == ["a", "b", "c"]
    install.install(environment, "cpu", dev=False)
    assert ran == ["a", "b", "c"]
    pins[1].write_text("x==2")
    install.install(environment, "cpu", dev=False)
    assert ran == ["a", "b", "c", "b", "c"]


def test_failed_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = [tmp_path / f"{name}.txt" for name in "abc"]
    for pin in pins:
        pin.write_text("x==1")
    ran = _record_pip(monkeypatch, pins, fails_once="b")
    with pytest.raises(install.StepFailed, match="step 'b' failed"):
        install.install(tmp_path / "env", "cpu", dev=False)
    install.install(tmp_path / "env", "cpu", dev=False)
    assert ran == ["a", "b", "b", "c"]


def test_failure_of_pip_names_the_step_and_quotes_pip(tmp_path: Path) -> None:
    environment = tmp_path / "env"
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(install.StepFailed, match=r"(?s)'build tools'.*exit 3.*no such package"):
        install._pip(python, install.Step("build tools", ("x",)))


def _record_pip(
    monkeypatch: pytest.MonkeyPatch, pins: list[Path], fails_once: str | None = None
) -> list[str]:
    """Replace the steps and pip itself by a record of which step ran."""
    ran: list[str] = []
    made = [install.Step(pin.stem, ("-r", str(pin)), (pin,)) for pin in pins]
    monkeypatch.setattr(install, "steps", lambda device, *, dev: made)

    def pip(python: Path, step: install.Step) -> None:
        ran.append(step.name)
        if step.name == fails_once and ran.count(step.name) == 1:
            raise install.StepFailed(f"step '{step.name}' failed")

    monkeypatch.setattr(install, "_pip", pip)
    return ran


def _requirements(step: install.Step) -> str:
    return "\n".join(
        source.read_text()
        for source in step.sources
        if source.suffix == ".txt" and source.stem != "constraints"
    )


def test_pip_of_the_new_environment_is_the_one_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        called.append([str(part) for part in command])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    install._pip(tmp_path / "bin" / "python", install.Step("x", ("y",)))
    assert called[0][:4] == [str(tmp_path / "bin" / "python"), "-m", "pip", "install"]
