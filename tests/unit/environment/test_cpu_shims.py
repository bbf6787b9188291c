"""The stand-ins, loaded from their source so that a GPU machine can test them too."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from eti_rank.environment import install


@pytest.fixture
def shim() -> ModuleType:
    path = Path(install.__file__).parent / "cpu_shims" / "sgl_kernel.py"
    spec = importlib.util.spec_from_file_location("sgl_kernel_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_writes_each_slice_into_its_row(shim: ModuleType) -> None:
    pool = torch.full((4, 6), -1)
    shim.assign_req_to_token_pool_cpu(
        torch.tensor([2, 0, 3]),
        pool,
        torch.tensor([1, 0, 4]),
        torch.tensor([3, 0, 6]),  # the second request has no new token
        torch.tensor([10, 11, 12, 13]),
        6,
    )
    expected = torch.full((4, 6), -1)
    expected[2, 1:3] = torch.tensor([10, 11])
    expected[3, 4:6] = torch.tensor([12, 13])
    assert torch.equal(pool, expected)


@pytest.mark.parametrize(
    ("end", "locations", "complaint"), [(7, 7, "row of 6"), (2, 3, "3 cache locations for 2")]
)
def test_refuses_what_does_not_fit(shim: ModuleType, end: int, locations: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        shim.assign_req_to_token_pool_cpu(
            torch.tensor([0]),
            torch.zeros(1, 6, dtype=torch.long),
            torch.tensor([0]),
            torch.tensor([end]),
            torch.arange(locations),
            6,
        )


def test_any_other_kernel_imports_and_says_what_it_is_when_called(shim: ModuleType) -> None:
    kernel = shim.fused_something_cpu
    with pytest.raises(RuntimeError, match=r"sgl_kernel\.fused_something_cpu .*GPU"):
        kernel(torch.zeros(1))


def test_torchvision_imports_beside_this_torch() -> None:
    import torchvision

    assert torchvision.__version__
