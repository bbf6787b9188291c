"""Fixtures for all tests."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_models import make_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By architecture: the folder of a small random-weight checkpoint, written once."""
    root = tmp_path_factory.mktemp("checkpoints")
    return functools.cache(lambda architecture: make_tiny_checkpoint(root / architecture, architecture))
