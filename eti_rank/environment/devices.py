"""Is there a CUDA device? Asked of the operating system, before torch is installed or imported."""

from pathlib import Path

_DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # Linux driver, Windows Subsystem for Linux


def cuda_device_present() -> bool:
    """Whether a driver offers its device file."""
    return any(path.exists() for path in _DEVICE_FILES)
