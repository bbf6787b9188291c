"""Folders of converted models: made once, whole or not at all, and made again when damaged."""

import contextlib
import fcntl
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from eti_rank.errors import ModelUnavailable

logger = logging.getLogger(__name__)

MANIFEST: Final = "eti-rank-manifest.json"


class _Record(BaseModel):
    """One file of a converted model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int
    sha256: str


_MANIFEST: Final = TypeAdapter(dict[str, _Record])


def ensure_converted(
    folder: Path, pinned: Mapping[str, str], convert: Callable[[Path], None], *, verify: bool = False
) -> None:
    """Have a converted model in `folder`, converting it unless it is there and undamaged.

    Of several processes one converts and the others wait for it. The folder appears in one step, so a
    process that is killed leaves nothing that looks finished.

    Args:
        folder: where the model belongs.
        pinned: SHA-256 that files must have after the conversion.
        convert: writes the model's files into a folder, which it makes.
        verify: read every file again instead of comparing names and sizes alone.

    Raises:
        ModelUnavailable: the conversion came out other than pinned, or the folder cannot be written.
    """
    if find_fault(folder, pinned, verify=verify) is None:
        return
    try:
        with _only_process(folder):
            # Asked again, because another process may have mended it in the meantime.
            if fault := find_fault(folder, pinned, verify=verify):
                _convert_with_log(folder, fault, pinned, convert)
    except OSError as error:
        raise ModelUnavailable(f"{folder} cannot be written: {error}") from None


def find_fault(folder: Path, pinned: Mapping[str, str], *, verify: bool = False) -> str | None:
    """Why a folder cannot be used; None if it can."""
    try:
        records = _MANIFEST.validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        return f"it has no readable manifest ({error.__class__.__name__})"
    for name, checksum in pinned.items():
        if name not in records or records[name].sha256 != checksum:
            return f"its manifest does not have the pinned checksum of {name}"
    for name, record in records.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != record.bytes:
            return f"{name} is missing or has another size"
        if verify and sha256_of(path) != record.sha256:
            return f"{name} has another checksum"
    return None


def sha256_of(path: Path) -> str:
    """Checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Hold a lock that dies with the process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process converts %s; waiting for it", folder.name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_with_log(
    folder: Path, fault: str, pinned: Mapping[str, str], convert: Callable[[Path], None]
) -> None:
    if folder.exists():
        logger.warning("converting %s again: %s", folder.name, fault)
    else:
        logger.info("converting %s, once; about a minute ...", folder.name)
    started = time.monotonic()
    _convert_into(folder, pinned, convert)
    logger.info("converted %s in %.0f s", folder.name, time.monotonic() - started)


def _convert_into(folder: Path, pinned: Mapping[str, str], convert: Callable[[Path], None]) -> None:
    """Convert beside `folder`, check, and move into place; whoever calls holds the lock."""
    scratch = folder.parent / f".converting-{folder.name}"
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
    try:
        convert(scratch)
        records = {
            path.name: _Record(bytes=path.stat().st_size, sha256=sha256_of(path))
            for path in sorted(scratch.iterdir())
        }
        for name, wanted in pinned.items():
            got = records[name].sha256 if name in records else "none"
            if got != wanted:
                raise ModelUnavailable(
                    f"{name} of {folder.name} came out with checksum {got} and must have {wanted}; are "
                    "transformers and gguf of the versions in eti_rank/environment/pins/?"
                )
        (scratch / MANIFEST).write_bytes(_MANIFEST.dump_json(records, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
