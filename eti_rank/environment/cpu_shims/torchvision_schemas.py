"""Lets PyPI's torchvision, a CUDA build, be imported beside a CPU build of torch.

Its compiled extension cannot load there, so the two operators that its Python code decorates at
import time are undeclared and the import fails. `install` (called from a ``.pth`` file at interpreter
start) waits for the import of torchvision and declares their schemas first, only if the extension
really does not load. SGLang imports torchvision for image models, which eti-rank does not use.
"""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept_alive: list[object] = []  # torch drops declarations together with their Library object


class _BeforeTorchvision:
    """Finder that finds nothing; it acts once, when torchvision is about to be imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            _declare_missing()
        return None


def _declare_missing() -> None:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    import torch

    for extension in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(extension))
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    _kept_alive.append(library)


def install() -> None:
    """Register the finder, once; cheap, and without effect until torchvision is imported."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())
