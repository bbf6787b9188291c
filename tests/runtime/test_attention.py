"""Block-sparse attention in the real scheduler, and the backend against SGLang's own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from eti_rank.engine import generation, wire
from eti_rank.engine.protocol import Generated, GenerationStep, Labels, Sampling, ScoringStep, generate_whole
from eti_rank.engine.sglang_local import SglangLocal
from eti_rank.engine.wire import DecodingControl, PruningControl
from eti_rank.errors import UnsupportedRequest
from tests.runtime.conftest import started

HARD: dict[str, Any] = {
    "block_tokens": 8,
    "window_tokens": 16,
    "confident_theta": 1e6,
    "low_nats": 1e6,
    "high_nats": 2e6,
    "first_blocks": 1,
    "last_blocks": 1,
    "min_blocks": 6,
    "max_dropped_mass": 0.99,
    "refresh_steps": 1000,
}
"""Keeps the minimum of blocks at whatever entropy."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(tiny_llama: Path) -> AsyncIterator[SglangLocal]:
    async with started(tiny_llama, generation=True, hooks=["scheduling", "sampling", "attention"]) as engine:
        yield engine


def prompt(seed: int, tokens: int = 200) -> tuple[int, ...]:
    return tuple(10 + (31 * seed + 7 * n + n * n % (11 + seed)) % 1500 for n in range(tokens))


def step(
    name: str, *, seed: int = 0, tokens: int = 24, prompt_tokens: int = 200, **pruning: Any
) -> GenerationStep:
    asked = PruningControl(**{**HARD, **pruning}) if pruning else None
    return GenerationStep(
        step_id=name,
        token_ids=prompt(seed, prompt_tokens),
        max_new_tokens=tokens,
        sampling=Sampling(temperature=0.0, ignore_eos=True),
        control=DecodingControl(pruning=asked),
    )


SPARSE: dict[str, Any] = {"min_blocks": 6}
KEEP_ALL: dict[str, Any] = {"confident_theta": 0.0}


async def alone(engine: SglangLocal, one: GenerationStep) -> Generated:
    await engine.flush_cache()
    return await generate_whole(engine, one)


def kept(generated: Generated) -> list[float]:
    return [report.kept_fraction for report in generated.reports if report.kept_fraction is not None]


async def test_the_hook_runs_and_is_named(engine: SglangLocal) -> None:
    assert wire.ATTENTION in engine.description.hooks
    evidence = await engine.score(ScoringStep(step_id="a", token_ids=prompt(0), readout=Labels((5,))))
    assert wire.ATTENTION in evidence.hooks


async def test_keeping_all_is_dense(engine: SglangLocal) -> None:
    dense = await alone(engine, step("dense"))
    everything = await alone(engine, step("all", **KEEP_ALL))
    assert everything.token_ids == dense.token_ids
    assert [r.entropy_nats for r in everything.reports] == [r.entropy_nats for r in dense.reports]
    assert kept(everything) == [1.0] * 24
    assert [r.dropped_mass for r in everything.reports] == [0.0] * 24
    assert kept(dense) == []


async def test_leaving_out_is_reported_and_changes_what_comes(engine: SglangLocal) -> None:
    dense, sparse = await alone(engine, step("dense")), await alone(engine, step("sparse", **SPARSE))
    # 25 blocks of prompt, 6 of them kept, and those of the generated tokens; the first token is dense.
    fractions = [1.0, *((6 + -(-n // 8)) / (25 + -(-n // 8)) for n in range(1, 24))]
    assert kept(sparse) == pytest.approx(fractions)
    dropped = [report.dropped_mass for report in sparse.reports]
    assert dropped[0] == 0.0
    assert all(mass is not None and 0 < mass <= 0.99 for mass in dropped[1:])
    assert sparse.token_ids[0] == dense.token_ids[0]
    assert sparse.reports[0].entropy_nats == dense.reports[0].entropy_nats
    assert sparse.reports[1].entropy_nats != dense.reports[1].entropy_nats
    assert all(report.entropy_nats is not None for report in sparse.reports)  # both hooks, one report


async def test_the_bound_on_dropped_mass_holds(engine: SglangLocal) -> None:
    careful = await alone(engine, step("careful", max_dropped_mass=0.2))
    assert all(report.dropped_mass is not None and report.dropped_mass <= 0.2 for report in careful.reports)
    assert 6 / 25 < kept(careful)[1] < 1


async def test_kv_written_while_pruned_never_serves_others(engine: SglangLocal) -> None:
    """The prompt of the second request is the first one's prompt and the tokens that it generated."""
    sparse = await alone(engine, step("sparse", **SPARSE))
    longer = step("longer").token_ids + sparse.token_ids + (7, 8, 9)
    follow = GenerationStep(
        step_id="follow",
        token_ids=longer,
        max_new_tokens=12,
        sampling=Sampling(temperature=0.0, ignore_eos=True),
        control=DecodingControl(),
    )
    after = await generate_whole(engine, follow)
    assert after.cached_tokens == 200  # the dense prompt, and nothing of what followed it
    fresh = await alone(engine, follow)
    assert fresh.cached_tokens == 0
    assert after.token_ids == fresh.token_ids
    assert [r.entropy_nats for r in after.reports] == pytest.approx(
        [r.entropy_nats for r in fresh.reports], abs=1e-4
    )


async def test_kv_written_while_dense_serves_others(engine: SglangLocal) -> None:
    """The contrast: without pruning SGLang reuses generated tokens too."""
    dense = await alone(engine, step("dense"))
    longer = step("longer").token_ids + dense.token_ids + (7, 8, 9)
    evidence = await engine.score(ScoringStep(step_id="more", token_ids=longer, readout=Labels((5,))))
    assert evidence.cached_tokens > 200 + 20


async def test_nor_does_that_of_an_aborted_request(engine: SglangLocal) -> None:
    await engine.flush_cache()
    written: tuple[int, ...] = ()
    async with aclosing(engine.generate(step("left", tokens=200, **SPARSE))) as pieces:
        async for piece in pieces:
            written += piece.token_ids
            if len(written) > 20:
                break
    async with asyncio.timeout(5):
        while engine.unfinished_requests:
            await asyncio.sleep(0.05)
    longer = step("longer").token_ids + written + (7, 8, 9)
    evidence = await engine.score(ScoringStep(step_id="more", token_ids=longer, readout=Labels((5,))))
    assert evidence.cached_tokens == 200


async def test_rows_that_do_not_prune_are_as_if_alone(engine: SglangLocal) -> None:
    singles = [await alone(engine, step(f"d{seed}", seed=seed)) for seed in range(3)]
    await engine.flush_cache()
    mixed = await asyncio.gather(
        *(generate_whole(engine, step(f"m{seed}", seed=seed)) for seed in range(3)),
        *(generate_whole(engine, step(f"s{seed}", seed=seed + 5, **SPARSE)) for seed in range(3)),
    )
    for single, one in zip(singles, mixed[:3], strict=True):
        assert one.token_ids == single.token_ids
        assert [r.entropy_nats for r in one.reports] == pytest.approx(
            [r.entropy_nats for r in single.reports], abs=1e-4
        )
    assert all(kept(one)[1] < 0.4 for one in mixed[3:])


async def test_each_request_has_its_own_control(engine: SglangLocal) -> None:
    few, many = step("few", seed=1, min_blocks=4), step("many", seed=2, min_blocks=12)
    singles = [await alone(engine, few), await alone(engine, many)]
    await engine.flush_cache()
    both = await asyncio.gather(generate_whole(engine, few), generate_whole(engine, many))
    assert [kept(one)[1] for one in both] == pytest.approx([5 / 26, 13 / 26])
    assert [one.token_ids for one in both] == [one.token_ids for one in singles]


async def test_every_so_many_tokens_one_sees_everything(engine: SglangLocal) -> None:
    refreshed = await alone(engine, step("refresh", refresh_steps=4))
    dense_at = [place for place, fraction in enumerate(kept(refreshed)) if fraction == 1.0]
    assert dense_at == [0, 4, 8, 12, 16, 20]


async def test_a_cached_prompt_is_pruned_like_a_cold_one(engine: SglangLocal) -> None:
    cold = await alone(engine, step("cold", **SPARSE))
    cached = await generate_whole(engine, step("cached", **SPARSE))
    assert cached.cached_tokens == 200 - 16  # all but the window
    assert cached.token_ids == cold.token_ids
    assert [r.dropped_mass for r in cached.reports] == pytest.approx(
        [r.dropped_mass for r in cold.reports], abs=1e-4
    )


async def test_protected_tokens_and_surprisal(engine: SglangLocal) -> None:
    protected = await alone(engine, step("protected", protected=((40, 120),)))
    assert kept(protected)[1] == pytest.approx((2 + 10 + 1) / 26)
    unigram = await alone(engine, step("unigram", surprisal="unigram"))
    model = await alone(engine, step("model", surprisal="model"))
    assert kept(unigram)[1] == kept(model)[1] == pytest.approx(7 / 26)


async def test_model_surprisal_without_log_probabilities_is_refused(engine: SglangLocal) -> None:
    """Straight to SGLang, for our own engine always asks for them."""
    told = wire.StepParams(decoding=DecodingControl(pruning=PruningControl(**HARD, surprisal="model")))
    params = {"max_new_tokens": 4, "temperature": 0.0, "custom_params": told.encode()}
    assert engine._engine is not None
    assert engine._host is not None
    asked = engine._engine.async_generate(input_ids=list(prompt(3)), sampling_params=params)
    answer = await engine._host.await_(asked)
    stamp = wire.Stamp.decode(answer["meta_info"])
    assert stamp is not None
    assert stamp.refusal is not None
    assert "logprob_start_len" in stamp.refusal
    reports = wire.decode_reports(answer["meta_info"])
    assert [report.kept_fraction for report in reports] == [1.0] * 4


async def test_a_chunked_prompt_is_measured_at_its_end(tiny_llama: Path) -> None:
    one = step("sparse", prompt_tokens=220, **SPARSE)  # the last chunk holds 28 tokens, the window 16
    hooks = ["sampling", "attention"]
    async with started(tiny_llama, generation=True, hooks=hooks, chunked_prefill_tokens=64) as chunked:
        in_chunks = await generate_whole(chunked, one)
    async with started(tiny_llama, generation=True, hooks=["attention"]) as unmeasured:
        whole = await generate_whole(unmeasured, one)
    assert in_chunks.token_ids == whole.token_ids
    assert kept(in_chunks) == kept(whole)
    assert kept(whole)[1] < 0.3
    assert [r.dropped_mass for r in in_chunks.reports] == pytest.approx(
        [r.dropped_mass for r in whole.reports], abs=1e-4
    )
    assert all(report.entropy_nats is None for report in whole.reports)  # the other hook is off


async def test_a_retracted_request_sees_everything_once_more_and_goes_on(tiny_llama: Path) -> None:
    """SGLang hopes that requests end early, and admits two whose KV cache has no room when they do not."""
    hooks = ["sampling", "attention"]
    async with started(tiny_llama, generation=True, hooks=hooks, max_total_tokens=520) as small:
        steps = [step(f"{n}", seed=n, tokens=180, prompt_tokens=112, **SPARSE) for n in range(3)]
        hopeful = [replace(one, sampling=Sampling(temperature=0.0)) for one in steps]
        asked = [generation.request(one) | {"stream": False} for one in hopeful]
        assert small._engine is not None
        assert small._host is not None
        calls = [small._host.await_(small._engine.async_generate(**each)) for each in asked]
        answers = await asyncio.gather(*calls)
    assert any(answer["meta_info"]["num_retractions"] for answer in answers)
    for answer in answers:
        fractions = [report.kept_fraction for report in wire.decode_reports(answer["meta_info"])]
        assert len(fractions) == len(answer["output_ids"])
        # dense: the first token, and the one after each retraction; all others leave blocks out
        assert fractions.count(1.0) == 1 + answer["meta_info"]["num_retractions"]
        assert min(fractions) == fractions[1] == pytest.approx(7 / 15)


async def test_pruning_without_the_hook_is_refused(tiny_llama: Path) -> None:
    async with started(tiny_llama, generation=True, hooks=["sampling"]) as other:
        with pytest.raises(UnsupportedRequest, match="attention"):
            await generate_whole(other, step("sparse", **SPARSE))


def backend(refusal: str | None = None, *, tokens: int = 400) -> Any:
    from eti_rank.runtime.attention.torch_backend import EtiTorchBackend

    return EtiTorchBackend(runner(tokens), refusal)


def runner(tokens: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(tokens, 2, 16, generator=generator) for _ in range(2))
    pool = SimpleNamespace(get_key_buffer=lambda _: keys, get_value_buffer=lambda _: values)
    table = torch.stack([torch.randperm(tokens, generator=generator)[:300] for _ in range(3)])
    return SimpleNamespace(
        device="cpu", req_to_token_pool=SimpleNamespace(req_to_token=table), token_to_kv_pool=pool
    )


def layer(**fields: Any) -> Any:
    shape = {"tp_q_head_num": 4, "tp_k_head_num": 2, "qk_head_dim": 16, "v_head_dim": 16, "layer_id": 0}
    kind = {"is_cross_attention": False, "attn_type": "decoder", "sliding_window_size": -1, "scaling": 0.25}
    return SimpleNamespace(**shape, **kind | fields)


@pytest.mark.parametrize("window", [-1, 50], ids=["full", "sliding"])
@pytest.mark.parametrize("prefixes", [(0, 0), (100, 0), (3, 250)])
async def test_extend_equals_sglangs_own(engine: SglangLocal, prefixes: tuple[int, int], window: int) -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    new = torch.tensor([20, 45])
    batch = SimpleNamespace(
        req_pool_indices=torch.tensor([2, 0]),
        seq_lens=torch.tensor(prefixes) + new,
        extend_prefix_lens=torch.tensor(prefixes),
        extend_seq_lens=new,
        encoder_lens=None,
        out_cache_loc=None,
    )
    query = torch.randn(65, 64, generator=torch.Generator().manual_seed(1))
    where = layer(sliding_window_size=window)
    theirs = TorchNativeAttnBackend(runner(400)).forward_extend(query, None, None, where, batch)
    ours = backend().forward_extend(query, None, None, where, batch)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


async def test_dense_decode_equals_sglangs_own_to_the_bit(engine: SglangLocal) -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    batch = SimpleNamespace(
        req_pool_indices=torch.tensor([2, 0, 1]),
        seq_lens=torch.tensor([250, 17, 1]),
        encoder_lens=None,
        out_cache_loc=None,
    )
    query = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    theirs = TorchNativeAttnBackend(runner(400)).forward_decode(query, None, None, layer(), batch)
    assert torch.equal(backend().forward_decode(query, None, None, layer(), batch), theirs)


async def test_kept_places_equal_the_reference(engine: SglangLocal) -> None:
    from eti_rank.runtime.attention.torch_backend import attend_kept

    pools = runner(400).token_to_kv_pool
    keys, values = pools.get_key_buffer(0), pools.get_value_buffer(0)
    generator = torch.Generator().manual_seed(2)
    query, places = torch.randn(4, 16, generator=generator), torch.randperm(400, generator=generator)[:77]
    expected = torch.stack(
        [
            torch.softmax(keys[places, head // 2] @ query[head] * 0.25, 0) @ values[places, head // 2]
            for head in range(4)
        ]
    )
    ours = attend_kept(query, keys, values, places, scale=0.25)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


async def test_flashinfer_without_cuda_is_a_clear_error(engine: SglangLocal) -> None:
    from eti_rank.errors import HookError
    from eti_rank.runtime import attention

    with pytest.raises(HookError, match="eti_flashinfer needs a CUDA device"):
        attention._create_flashinfer(runner(10))


async def test_a_backend_that_may_not_prune_says_so(engine: SglangLocal) -> None:
    from eti_rank.runtime import request_state
    from eti_rank.runtime.attention import batch_plan

    told = wire.StepParams(decoding=DecodingControl(pruning=PruningControl(**HARD)))
    req = SimpleNamespace(sampling_params=SimpleNamespace(custom_params=told.encode()))
    state = request_state.of(req)
    row = SimpleNamespace(state=state, generated_tokens=0, ends_prompt=True, request=req)
    batch = SimpleNamespace(spec_info=None, forward_mode=None, eti_rank_rows=(row,))
    assert batch_plan.plan_batch(batch, "it cannot") == batch_plan.NOTHING
    assert state.refusal == "it cannot; the request attends to everything"
    assert state.reports == [wire.TokenReport(kept_fraction=1.0, dropped_mass=0.0)]
    assert wire.ATTENTION in state.ran


async def test_flashinfer_is_planned_with_what_is_kept(engine: SglangLocal) -> None:
    """SGLang's own planner on a CPU, up to the call of FlashInfer's wrapper."""
    from sglang.srt.layers.attention import flashinfer_backend as theirs

    from eti_rank.runtime.attention.flashinfer_backend import EtiFlashInferBackend

    table = torch.arange(100, 400).reshape(3, 100)
    calls: list[tuple[Any, ...]] = []

    def pack(_plan: Any, *, req_pool_indices: Any, seq_lens: Any, indptr: Any, out: Any, **_: Any) -> None:
        assert indptr.tolist() == [0, 5, 9]
        rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
        out[:] = torch.cat([table[row, :length] for row, length in rows])

    updater = object.__new__(theirs.FlashInferIndicesUpdaterDecode)
    updater.kv_indptr, updater.kv_last_page_len = [torch.zeros(9, dtype=torch.int32)], torch.ones(8)
    updater.num_qo_heads, updater.num_kv_heads, updater.head_dim = 4, 2, 16
    updater.data_type = updater.q_data_type = torch.float16
    ours = object.__new__(EtiFlashInferBackend)
    ours.kv_index_translator = SimpleNamespace(pack_read_stream=pack, reads_are_translated=False)
    ours.decode_wrappers = [
        SimpleNamespace(is_cuda_graph_enabled=False, begin_forward=lambda *args, **_: calls.append(args))
    ]
    ours.indices_updater_decode, ours.decode_split_tile_size = updater, None
    updater.attn_backend = ours
    batch = SimpleNamespace(
        batch_size=2,
        seq_lens=torch.tensor([5, 4]),
        seq_lens_cpu=torch.tensor([5, 4]),
        seq_lens_sum=9,
        req_pool_indices=torch.tensor([2, 0]),
        kv_loc_plan=None,
    )
    ours._plan_batch(batch, (np.array([0, 3, 4]), None))
    ((indptr, indices, pages, heads, key_heads, width, page_size),) = calls
    assert indptr.tolist() == [0, 3, 7]
    assert indices.tolist() == [300, 303, 304, 100, 101, 102, 103]
    assert (len(pages), heads, key_heads, width, page_size) == (2, 4, 2, 16, 1)
    assert theirs.global_override_indptr_cpu is None
    assert ours.forward_metadata.decode_wrappers is ours.decode_wrappers
