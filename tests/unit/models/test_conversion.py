"""A converted model is there whole or not at all, whatever happens to the process that converts."""

import hashlib
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from eti_rank.errors import ModelUnavailable
from eti_rank.models.conversion import MANIFEST, ensure_converted, find_fault

WEIGHTS = b"weights"
PINNED = {"model.safetensors": hashlib.sha256(WEIGHTS).hexdigest()}


def convert(scratch: Path, *, log: Path, wait_s: float = 0.0, weights: bytes = WEIGHTS) -> None:
    with log.open("a") as file:
        file.write("converted\n")
    scratch.mkdir()
    (scratch / "config.json").write_bytes(b"{}")
    time.sleep(wait_s)
    (scratch / "model.safetensors").write_bytes(weights)


def convert_and_die(scratch: Path) -> None:
    scratch.mkdir()
    (scratch / "model.safetensors").write_bytes(b"wei")
    os._exit(1)


def ensure_in_a_process(folder: Path, log: Path) -> None:
    ensure_converted(folder, PINNED, partial(convert, log=log, wait_s=0.3))


def die_in_a_process(folder: Path) -> None:
    ensure_converted(folder, PINNED, convert_and_die)


class Case:
    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "models" / "small-1"
        self.log = tmp_path / "log"
        self.ensure: Callable[..., None] = partial(
            ensure_converted, self.folder, PINNED, partial(convert, log=self.log)
        )

    @property
    def conversions(self) -> int:
        return len(self.log.read_text().splitlines())

    def visible(self) -> list[str]:
        return sorted(path.name for path in self.folder.parent.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_converts_once(case: Case) -> None:
    case.ensure()
    case.ensure()
    assert case.conversions == 1
    assert (case.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert case.visible() == ["small-1"]


def _shorten(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-1])


def _remove(folder: Path) -> None:
    (folder / "config.json").unlink()


def _cut_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"model.saf')


def _empty_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("{}")


def _other_manifest(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["model.safetensors"]["sha256"] = "0" * 64
    (folder / MANIFEST).write_text(json.dumps(manifest))


def _no_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_shorten, "model.safetensors is missing or has another size"),
        (_remove, "config.json is missing"),
        (_cut_manifest, "no readable manifest"),
        (_empty_manifest, "pinned checksum of model.safetensors"),
        (_other_manifest, "pinned checksum of model.safetensors"),
        (_no_manifest, "no readable manifest"),
    ],
)
def test_a_damaged_folder_is_made_again_with_a_reason(
    case: Case, damage: Callable[[Path], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    case.ensure()
    damage(case.folder)
    with caplog.at_level(logging.WARNING):
        case.ensure()
    assert reason in caplog.text
    assert case.conversions == 2
    assert find_fault(case.folder, PINNED, verify=True) is None


def test_verify_reads_every_file(case: Case) -> None:
    case.ensure()
    (case.folder / "model.safetensors").write_bytes(WEIGHTS.upper())  # the same size
    case.ensure()
    assert case.conversions == 1
    case.ensure(verify=True)
    assert case.conversions == 2


def test_a_conversion_that_comes_out_wrong_leaves_nothing(case: Case) -> None:
    with pytest.raises(ModelUnavailable, match="model.safetensors of small-1 came out with checksum"):
        ensure_converted(case.folder, PINNED, partial(convert, log=case.log, weights=b"other"))
    assert case.visible() == []


def test_a_conversion_that_fails_keeps_the_old_folder(case: Case) -> None:
    case.ensure()
    _shorten(case.folder)
    with pytest.raises(ModelUnavailable, match="cannot be written: disk full"):
        ensure_converted(case.folder, PINNED, _raise_disk_full)
    assert case.visible() == ["small-1"]


def _raise_disk_full(scratch: Path) -> None:
    raise OSError("disk full")


def test_two_processes_convert_once(case: Case) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=ensure_in_a_process, args=(case.folder, case.log)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0]
    assert case.conversions == 1
    assert find_fault(case.folder, PINNED, verify=True) is None


def test_what_a_killed_process_left_is_cleared(case: Case) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die_in_a_process, args=(case.folder,))
    process.start()
    process.join(30)
    assert process.exitcode == 1
    assert case.visible() == [".converting-small-1"]
    case.ensure()
    assert case.visible() == ["small-1"]
    assert find_fault(case.folder, PINNED, verify=True) is None


def test_a_cache_that_cannot_be_written_is_an_error(case: Case) -> None:
    case.folder.parent.parent.mkdir(exist_ok=True)
    case.folder.parent.write_text("a file in the way")
    with pytest.raises(ModelUnavailable, match="cannot be written"):
        case.ensure()
