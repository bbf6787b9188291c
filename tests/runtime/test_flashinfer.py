"""The FlashInfer backend on a GPU. Unproven: no device has run these tests yet."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from eti_rank.engine.protocol import generate_whole
from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.environment.devices import cuda_device_present
from tests.runtime.conftest import started
from tests.runtime.test_attention import KEEP_ALL, SPARSE, alone, kept, step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda_device_present(), reason="needs a CUDA device and FlashInfer"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(tiny_llama: Path) -> AsyncIterator[SglangLocal]:
    hooks = ["scheduling", "sampling", "attention"]
    async with started(tiny_llama, generation=True, hooks=hooks, device="cuda", dtype="float16") as engine:
        yield engine


async def test_keeping_all_is_dense(engine: SglangLocal) -> None:
    dense, everything = await alone(engine, step("dense")), await alone(engine, step("all", **KEEP_ALL))
    assert everything.token_ids == dense.token_ids
    assert kept(everything) == [1.0] * 24


async def test_leaving_out_is_reported_and_changes_what_comes(engine: SglangLocal) -> None:
    dense, sparse = await alone(engine, step("dense")), await alone(engine, step("sparse", **SPARSE))
    assert kept(sparse)[1] == pytest.approx(7 / 26)
    assert sparse.token_ids[0] == dense.token_ids[0]
    assert sparse.reports[1].entropy_nats != dense.reports[1].entropy_nats


async def test_kv_written_while_pruned_never_serves_others(engine: SglangLocal) -> None:
    sparse = await alone(engine, step("sparse", **SPARSE))
    follow = step("follow", prompt_tokens=200)
    longer = type(follow)(
        step_id="longer", token_ids=follow.token_ids + sparse.token_ids + (7, 8), max_new_tokens=8
    )
    assert (await generate_whole(engine, longer)).cached_tokens == 200
