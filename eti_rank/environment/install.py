"""Makes the environment: ``python3 -m eti_rank.environment.install`` (standard library only).

Every step is remembered in the environment together with a hash of what it was made from, so that a
second run does nothing, a changed pin repeats its step and those after it, and a failed run goes on
where it stopped.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eti_rank.environment.devices import cuda_device_present

HERE = Path(__file__).parent
PINS = HERE / "pins"
REPOSITORY = HERE.parent.parent
MARKER = "eti-rank-installed.json"
BUILD = ("setuptools==84.2.1",)


@dataclass(frozen=True)
class Step:
    """One call of pip and what it depends on."""

    name: str
    pip: tuple[str, ...]
    sources: tuple[Path, ...] = ()

    def fingerprint(self, before: str) -> str:
        """Hash of the call, its sources and the steps before it."""
        digest = hashlib.sha256(before.encode())
        digest.update(" ".join(self.pip).replace(str(REPOSITORY), "").encode())
        for source in self.sources:
            digest.update(source.read_bytes())
        return digest.hexdigest()


class StepFailed(Exception):
    """A step of the installation did not succeed."""


def steps(device: str, *, dev: bool) -> list[Step]:
    """What makes an environment for `device` (`cpu` or `cuda`), in order."""
    constraints = PINS / "constraints.txt"

    def requirements(name: str, *extra: str) -> Step:
        pins = PINS / f"{name}.txt"
        return Step(f"{name} packages", ("-r", str(pins), *extra), (pins, constraints))

    # Constraints are versions of the CPU installation; on a GPU SGLang's own pins decide.
    pinned = ("-c", str(constraints)) if device == "cpu" else ()
    found = [Step("build tools", BUILD)]
    if device == "cpu":
        shims = HERE / "cpu_shims"
        found += [
            requirements("cpu", *pinned),
            requirements("cpu-no-deps", "--no-deps"),
            Step(
                "stand-ins for GPU kernels",
                ("--no-deps", "--no-build-isolation", "--force-reinstall", str(shims)),
                tuple(sorted(p for p in shims.iterdir() if p.is_file())),
            ),
        ]
    else:
        found.append(requirements("gpu"))
    found.append(requirements("model", "--no-deps"))
    if dev:
        found.append(requirements("dev", *pinned))
    pyproject = (REPOSITORY / "pyproject.toml", REPOSITORY / "eti_rank" / "__init__.py")
    found.append(Step("eti-rank itself", (*pinned, "--no-build-isolation", "-e", str(REPOSITORY)), pyproject))
    return found


def install(environment: Path, device: str, *, dev: bool) -> None:
    """Bring `environment` up to date.

    Raises:
        StepFailed: names the step and says what pip said.
    """
    python = environment / "bin" / "python"
    if not _works(python):
        _say(f"creating {environment.name} with Python {platform.python_version()}")
        venv.create(environment, with_pip=True, clear=True)
    marker = environment / MARKER
    done: list[str] = json.loads(marker.read_text()) if marker.exists() else []
    before = f"{platform.python_version()} {device}"
    for position, step in enumerate(steps(device, dev=dev)):
        before = step.fingerprint(before)
        if done[position : position + 1] == [before]:
            continue
        started = time.monotonic()
        _say(f"installing {step.name} ...")
        _pip(python, step)
        _say(f"installing {step.name} took {time.monotonic() - started:.0f} s")
        done = [*done[:position], before]
        marker.write_text(json.dumps(done))


def _works(python: Path) -> bool:
    if not python.exists():
        return False
    asked = subprocess.run(  # noqa: S603
        [python, "-c", "import pip, sys; print(sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.returncode == 0 and asked.stdout.strip() == str(sys.version_info[:2])


def _pip(python: Path, step: Step) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step.pip]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ran.returncode:
        said = "\n".join(f"    {line}" for line in ran.stderr.strip().splitlines()[-15:])
        raise StepFailed(
            f"step '{step.name}' failed (pip exit {ran.returncode}):\n{said}\n"
            f"  repeat it alone with: pip install {' '.join(step.pip)}"
        )


def _say(text: str) -> None:
    sys.stderr.write(f"setup: {text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=REPOSITORY / ".venv", help="folder of the environment")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dev", action="store_true", help="also what tests, checks and studies need")
    given = parser.parse_args(arguments)
    device = given.device
    if device == "auto":
        device = "cuda" if cuda_device_present() else "cpu"
    try:
        install(given.venv, device, dev=given.dev)
    except StepFailed as failure:
        _say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
