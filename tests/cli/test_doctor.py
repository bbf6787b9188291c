"""`eti-rank doctor`: rows for what there is and what there is not."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from eti_rank.cli import findings
from eti_rank.cli.findings import State
from eti_rank.models import conversion, embedded
from eti_rank.runtime.targets import TargetReport
from eti_rank.settings import EngineSettings, ModelSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two places of SGLang, one of them moved, without importing it."""
    reports = [
        TargetReport("telemetry", "sglang.srt.here", True, "(self, reqs)"),
        TargetReport("launch", "sglang.srt.gone", False, "not there"),
    ]
    monkeypatch.setattr("eti_rank.engine.sglang_local.hook_reports", lambda: reports)


def test_json_and_table_have_the_same_rows(run, hooks) -> None:
    as_json = run("doctor", "--json")
    rows = json.loads(as_json.out)
    names = [row["name"] for row in rows]
    assert names[:8] == [
        "settings", "python", "cores", "memory", "torch", "cuda device", "sglang", "flashinfer",
    ]  # fmt: skip
    assert all(set(row) == {"name", "state", "detail"} and row["detail"] for row in rows)
    assert (as_json.code == 2) == any(row["state"] == "missing" for row in rows)
    as_table = run("doctor")
    assert as_table.code == as_json.code
    assert all(name in as_table.out for name in names)


def test_wrong_settings_are_a_row_and_the_rest_is_examined(run, hooks, monkeypatch) -> None:
    monkeypatch.setenv("ETI_RANK_ENGINE__DEVICE", "tpu")
    ran = run("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(ran.out)}
    assert ran.code == 2
    assert rows["settings"]["state"] == "missing"
    assert "engine.device" in rows["settings"]["detail"]
    assert rows["python"]["state"] == "ok"


def test_another_version_of_sglang_is_missing_where_it_is_needed(monkeypatch) -> None:
    monkeypatch.setattr(findings, "_version", {"sglang": "0.4.0"}.get)
    found = {f.name: f for f in findings._sglang(EngineSettings(device="cpu"))}
    assert found["sglang"].state is State.MISSING
    assert "0.4.0; eti-rank is made for 0.5.23" in found["sglang"].detail
    assert found["flashinfer"].state is State.UNNEEDED
    assert found["sgl_kernel"].state is State.MISSING
    without = {f.name: f.state for f in findings._sglang(EngineSettings(kind="scripted"))}
    assert set(without.values()) == {State.UNNEEDED}


@pytest.mark.parametrize(("device", "state"), [("auto", State.UNNEEDED), ("cuda", State.MISSING)])
def test_no_gpu_is_missing_only_if_it_is_asked_for(monkeypatch, device, state) -> None:
    monkeypatch.setattr(findings, "cuda_device_present", lambda: False)
    assert findings._cuda(EngineSettings(device=device)).state is state


def test_the_embedded_model_is_found_in_each_of_its_states(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ETI_RANK_CACHE", str(tmp_path))
    monkeypatch.setattr(findings, "_version", {}.get)
    absent = findings._model(ModelSettings())
    assert (absent.state, "not installed" in absent.detail) == (State.MISSING, True)

    package = embedded.MODELS["smollm2-135m-instruct"]
    monkeypatch.setattr(findings, "_version", {package.package: package.version}.get)
    unconverted = findings._model(ModelSettings())
    assert (unconverted.state, "not converted yet" in unconverted.detail) == (State.OK, True)

    folder = tmp_path / "models" / f"smollm2-135m-instruct-{package.version}-{embedded.CONVERSION}"
    folder.mkdir(parents=True)
    checksums = {}
    for name, content in (("model.safetensors", b"good"), ("tokenizer.json", b"{}")):
        (folder / name).write_bytes(content)
        checksums[name] = {"bytes": len(content), "sha256": conversion.sha256_of(folder / name)}
    (folder / conversion.MANIFEST).write_text(json.dumps(checksums))
    small = dataclasses.replace(package, pinned={name: row["sha256"] for name, row in checksums.items()})
    monkeypatch.setitem(embedded.MODELS, "smollm2-135m-instruct", small)
    converted = findings._model(ModelSettings())
    assert (converted.state, "verified" in converted.detail) == (State.OK, True)

    (folder / "model.safetensors").write_bytes(b"evil")
    damaged = findings._model(ModelSettings())
    assert (damaged.state, "has another checksum" in damaged.detail) == (State.MISSING, True)


def test_an_unknown_profile_is_missing_and_another_one_is_left_to_the_start() -> None:
    assert findings._model(ModelSettings(profile="absent")).state is State.MISSING
    assert findings._model(ModelSettings(profile="qwen3-reranker-0.6b")).state is State.OK


def test_pins_are_read(monkeypatch) -> None:
    assert findings._pinned_version("sglang", "gpu") == findings._pinned_version("sglang", "cpu-no-deps")


def test_nothing_is_asked_of_sglang_where_it_is_absent(monkeypatch) -> None:
    monkeypatch.setattr(findings, "_version", {}.get)
    (row,) = findings._hooks(EngineSettings())
    assert row.state is State.MISSING


def test_a_moved_place_is_missing_and_named(hooks) -> None:
    rows = list(findings._hooks(EngineSettings()))
    assert [(row.name, row.state) for row in rows] == [
        ("hook telemetry", State.OK),
        ("hook launch", State.MISSING),
    ]
    assert rows[1].detail == "sglang.srt.gone: not there"


def test_a_hook_that_is_off_is_not_needed(hooks, monkeypatch) -> None:
    moved = TargetReport(name="sampling", path="sglang.srt.gone", ok=False, detail="not there")
    monkeypatch.setattr("eti_rank.engine.sglang_local.hook_reports", lambda: [moved])
    (wanted,) = findings._hooks(EngineSettings(hooks=("sampling",)))
    (off,) = findings._hooks(EngineSettings(hooks=()))
    assert wanted.state is State.MISSING
    assert off.state is State.UNNEEDED
    assert off.detail.startswith("off in engine.hooks; ")


@pytest.mark.slow
@pytest.mark.runtime
def test_each_place_in_the_real_sglang_is_as_expected() -> None:
    program = (
        "import sys; from eti_rank.cli.main import main; sys.argv = ['eti-rank', 'doctor', '--json']; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    rows = [row for row in json.loads(ran.stdout) if row["name"].startswith("hook ")]
    assert rows
    assert {row["state"] for row in rows if row["name"] != "hook attention"} == {"ok"}
    assert {row["state"] for row in rows if row["name"] == "hook attention"} == {"unneeded"}
