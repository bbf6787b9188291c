"""What every study writes beside its figures: when, on what, with which versions."""

import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("eti-rank", "sglang", "torch", "transformers", "numpy", "scipy", "ir-measures")


def surroundings() -> dict[str, Any]:
    """Hardware and versions of this run."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def write(name: str, figures: dict[str, Any], command: str) -> Path:
    """Write ``eval/results/<name>.json``; returns its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = figures | {"command": command, "surroundings": surroundings()}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def write_section(name: str, section: str, figures: dict[str, Any], command: str) -> Path:
    """Replace one section of ``eval/results/<name>.json``; other sections stay as they are."""
    path = RESULTS / f"{name}.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    content[section] = figures | {"command": command, "surroundings": surroundings()}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
