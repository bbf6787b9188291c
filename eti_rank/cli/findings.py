"""What `eti-rank doctor` looks at; each finding is one row."""

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import get_args

from eti_rank.environment.devices import cuda_device_present
from eti_rank.errors import ConfigurationError
from eti_rank.settings import EngineSettings, Hook, ModelSettings, Settings, load_settings

SGL_KERNEL_PACKAGES = ("sglang-kernel", "sgl-kernel")
STAND_IN_PACKAGE = "eti-rank-cpu-shims"


class State(StrEnum):
    """How a thing was found."""

    OK = "ok"
    MISSING = "missing"
    """Needed with these settings, and not there or not right."""
    UNNEEDED = "unneeded"
    """These settings do without it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that this machine has or lacks."""

    name: str
    state: State
    detail: str

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {"name": self.name, "state": self.state, "detail": self.detail}


def examine(config: Path | None) -> list[Finding]:
    """Look at everything, in the order in which one thing rests on another."""
    try:
        settings = load_settings(config)
        found = [Finding("settings", State.OK, "valid")]
    except ConfigurationError as error:
        settings = Settings.model_construct()
        found = [Finding("settings", State.MISSING, str(error))]
    found += [Finding("python", State.OK, platform.python_version()), *_hardware()]
    found += [_torch(), _cuda(settings.engine), *_sglang(settings.engine)]
    return [*found, _model(settings.model), *_hooks(settings.engine)]


def _hardware() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding("cores", State.OK, f"{cores} for this process, {os.cpu_count()} in the machine")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Finding("memory", State.OK, f"{memory / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free")


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", State.MISSING, f"cannot be imported: {error}; run make setup")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    return Finding(
        "torch", State.OK, f"{torch.__version__}, {build} build, {torch.get_num_threads()} threads"
    )


def _cuda(settings: EngineSettings) -> Finding:
    lacking = State.MISSING if settings.device == "cuda" else State.UNNEEDED
    if not cuda_device_present():
        return Finding("cuda device", lacking, "none; SGLang runs on the CPU")
    try:
        import torch

        count = torch.cuda.device_count()
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    except (ImportError, OSError, RuntimeError, AssertionError) as error:
        return Finding("cuda device", State.MISSING, f"there is a driver, but torch cannot use it: {error}")
    if not count:
        return Finding("cuda device", State.MISSING, "there is a driver, but torch sees no device")
    return Finding("cuda device", State.OK, names)


def _sglang(settings: EngineSettings) -> Iterator[Finding]:
    needed = settings.kind == "sglang_local"
    lacking = State.MISSING if needed else State.UNNEEDED
    on_gpu = cuda_device_present() and settings.device != "cpu"
    pinned, found = _pinned_version("sglang", "gpu" if on_gpu else "cpu-no-deps"), _version("sglang")
    if found == pinned:
        yield Finding("sglang", State.OK, found)
    else:
        yield Finding(
            "sglang", lacking, f"{found or 'absent'}; eti-rank is made for {pinned}; run make setup"
        )
    flashinfer = _version("flashinfer-python")
    if flashinfer:
        yield Finding("flashinfer", State.OK, flashinfer)
    else:
        state = lacking if on_gpu else State.UNNEEDED
        yield Finding("flashinfer", state, "absent; it serves attention on a GPU")
    yield _sgl_kernel(lacking, on_gpu=on_gpu)


def _sgl_kernel(lacking: State, *, on_gpu: bool) -> Finding:
    for package in SGL_KERNEL_PACKAGES:
        if version := _version(package):
            return Finding("sgl_kernel", State.OK, f"{package} {version}")
    if stand_in := _version(STAND_IN_PACKAGE):
        state = lacking if on_gpu else State.OK
        return Finding("sgl_kernel", state, f"eti-rank's stand-in {stand_in}, for the CPU")
    return Finding("sgl_kernel", lacking, "absent; run make setup")


def _model(settings: ModelSettings) -> Finding:
    """The profile, and the files of an embedded model; converts and downloads nothing."""
    from eti_rank.models.profile import EmbeddedSource, load_profile

    try:
        profile = load_profile(settings.profile)
        if settings.path is None and isinstance(profile.source, EmbeddedSource):
            return _embedded_model(profile.source.model)
    except ConfigurationError as error:
        return Finding("model", State.MISSING, str(error))
    return Finding("model", State.OK, f"profile {profile.name}; the checkpoint is looked at by the start")


def _embedded_model(name: str) -> Finding:
    from eti_rank.models import embedded

    if embedded.inspect(name):
        return Finding("model", State.OK, f"{name}, converted and verified")
    model = embedded.MODELS[name]
    if _version(model.package) == model.version:
        detail = f"{name}, in {model.package} {model.version}; not converted yet, the first start does it"
        return Finding("model", State.OK, detail)
    detail = f"{name} comes in {model.package} {model.version}, which is not installed; run make setup"
    return Finding("model", State.MISSING, detail)


def _hooks(settings: EngineSettings) -> Iterator[Finding]:
    """One row for each place where SGLang is touched; imports SGLang."""
    lacking = State.MISSING if settings.kind == "sglang_local" else State.UNNEEDED
    if _version("sglang") is None:
        yield Finding("hooks", lacking, "cannot be looked up without SGLang")
        return
    from eti_rank.engine.sglang_local import hook_reports

    for report in hook_reports():
        found = f"{report.path}: {report.detail}"
        if report.name in get_args(Hook) and report.name not in settings.hooks:
            yield Finding(f"hook {report.name}", State.UNNEEDED, f"off in engine.hooks; {found}")
        else:
            yield Finding(f"hook {report.name}", State.OK if report.ok else lacking, found)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pinned_version(package: str, pins: str) -> str:
    """The version of a package in one of the files of pins."""
    text = resources.files("eti_rank.environment").joinpath("pins", f"{pins}.txt").read_text()
    return dict(line.split("==") for line in text.splitlines() if "==" in line)[package]
