"""What a worker must prove before it gets steps."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eti_rank import __version__
from eti_rank.engine import wire
from eti_rank.engine.protocol import EngineState
from eti_rank.engine.sglang_remote import SglangRemote
from eti_rank.errors import ConfigurationError, EngineUnavailable, EtiRankError, HookError
from eti_rank.settings import EngineSettings
from tests.fake_worker import FakeWorker, running
from tests.unit.engine.sglang_remote.conftest import engine_on, started, step
from tests.unit.engine.sglang_remote.test_scoring import until


@pytest.fixture
def pair() -> Iterator[tuple[FakeWorker, FakeWorker]]:
    workers = (FakeWorker(), FakeWorker())
    with running(*workers):
        yield workers


def spoil(worker: FakeWorker, **info: Any) -> None:
    worker.info |= info


SPOILT = [
    pytest.param(lambda w: w.kill(), EngineUnavailable, "was not answered", id="dead"),
    pytest.param(lambda w: setattr(w, "stamp", None), HookError, "without a stamp", id="no-plugin"),
    pytest.param(
        lambda w: setattr(w, "stamp", wire.Stamp("0.0.1", ())), HookError, "runs eti-rank 0.0.1", id="version"
    ),
    pytest.param(
        lambda w: setattr(w, "stamp", wire.Stamp(__version__, ())),
        HookError,
        "did not run",
        id="hook-missing",
    ),
    pytest.param(
        lambda w: spoil(w, architectures=["GemmaForCausalLM"]), ConfigurationError, "Gemma", id="architecture"
    ),
    pytest.param(
        lambda w: spoil(w, max_req_input_len=100), ConfigurationError, "99 tokens.*256", id="context-length"
    ),
    pytest.param(
        lambda w: spoil(w, enable_custom_logit_processor=True), ConfigurationError, "executes code", id="code"
    ),
    pytest.param(
        lambda w: setattr(w, "offset_nats", 0.01), ConfigurationError, "other weights", id="weights"
    ),
    pytest.param(lambda w: spoil(w, dtype="bfloat16"), ConfigurationError, "computes in", id="dtype"),
    pytest.param(lambda w: setattr(w, "api_key", "k"), EngineUnavailable, "401: Unauthorized", id="key"),
    pytest.param(lambda w: w.info.pop("device"), EngineUnavailable, "does not describe", id="not-sglang"),
]


@pytest.mark.parametrize(("spoil_it", "kind", "complaint"), SPOILT)
async def test_an_unfit_worker_is_a_start_error_that_names_it(
    tmp_path: Path,
    pair: tuple[FakeWorker, FakeWorker],
    spoil_it: Any,
    kind: type[EtiRankError],
    complaint: str,
) -> None:
    spoil_it(pair[1])
    engine = engine_on(tmp_path, *pair)
    with pytest.raises(kind, match=f"worker {pair[1].url}: .*{complaint}") as raised:
        await engine.start()
    assert type(raised.value) is kind
    assert pair[0].url not in str(raised.value).replace(f"than worker {pair[0].url}", "").replace(
        f"worker {pair[0].url} in float32", ""
    )
    assert engine.state is EngineState.CLOSED


@pytest.mark.parametrize(("spoil_it", "kind", "complaint"), SPOILT)
async def test_one_fit_worker_is_enough_where_not_all_are_required(
    tmp_path: Path,
    pair: tuple[FakeWorker, FakeWorker],
    spoil_it: Any,
    kind: type[EtiRankError],
    complaint: str,
) -> None:
    spoil_it(pair[1])
    async with started(tmp_path, *pair, require_all=False) as engine:
        assert engine.workers == {pair[0].url: "ready", pair[1].url: "out"}
        await engine.score(step())
        assert pair[1].bodies == []


async def test_a_worker_that_was_missing_joins_later(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    pair[1].kill()
    async with started(tmp_path, *pair, require_all=False) as engine:
        pair[1].start()
        await until(lambda: engine.workers[pair[1].url] == "ready")


async def test_no_fit_worker_is_a_start_error_even_then(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    pair[0].kill()
    pair[1].stamp = None
    engine = engine_on(tmp_path, *pair, require_all=False)
    with pytest.raises(HookError, match=f"{pair[0].url}: .*{pair[1].url}: "):
        await engine.start()


async def test_plugin_that_is_off_and_runs_all_the_same(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    engine = engine_on(tmp_path, pair[0], plugin=False)
    with pytest.raises(HookError, match="plugin is off"):
        await engine.start()
    pair[0].stamp = None
    async with started(tmp_path, pair[0], plugin=False) as plain:
        assert (await plain.score(step())).hooks == plain.description.hooks == ()


async def test_the_key_opens_the_worker_and_appears_nowhere(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    pair[0].api_key = "open-sesame"
    async with started(tmp_path, pair[0], api_key="open-sesame") as engine:
        await engine.score(step())
    engine = engine_on(tmp_path, pair[0], api_key="another-key")
    with pytest.raises(EngineUnavailable) as raised:
        await engine.start()
    assert "another-key" not in str(raised.value)
    assert "another-key" not in repr(engine._settings)


async def test_start_is_bounded(tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]) -> None:
    pair[0].silent = True
    engine = engine_on(tmp_path, pair[0], health_timeout_s=0.2)
    async with asyncio.timeout(5):
        with pytest.raises(EngineUnavailable, match=r"not answered within 0\.2 s"):
            await engine.start()


async def test_other_model_than_the_checkpoint(tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]) -> None:
    engine = engine_on(tmp_path, pair[0], architecture="Qwen3ForCausalLM")
    with pytest.raises(
        ConfigurationError, match="serves LlamaForCausalLM; the model here is Qwen3ForCausalLM"
    ):
        await engine.start()


async def test_vocabulary_comes_from_the_checkpoint(
    tmp_path: Path, pair: tuple[FakeWorker, FakeWorker]
) -> None:
    engine = engine_on(tmp_path, pair[0])
    for config in ({}, {"architectures": ["A"]}, {"architectures": ["A"], "vocab_size": "many"}, []):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigurationError, match=r"config\.json of model"):
            await engine.start()
        engine = engine_on(tmp_path, pair[0])
    await engine.close()
    missing = SglangRemote(engine._settings, "nobody/no-such-model", 256)
    with pytest.raises(ConfigurationError, match="nobody/no-such-model"):
        await missing.start()


@pytest.mark.parametrize(
    "urls",
    [
        pytest.param([], id="none"),
        pytest.param(["http://a:1", "http://a:1/"], id="twice"),
        pytest.param(["a:1"], id="no-scheme"),
        pytest.param(["ftp://a:1"], id="ftp"),
        pytest.param(["http://"], id="no-host"),
        pytest.param(["http://a:port"], id="port"),
        pytest.param(["http://user:secret@a:1"], id="password"),
    ],
)
def test_wrong_urls_are_a_configuration_error(urls: list[str]) -> None:
    settings = EngineSettings.model_validate({"kind": "sglang_remote", "remote": {"urls": urls}})
    with pytest.raises(ConfigurationError, match=r"engine\.remote\.urls") as raised:
        SglangRemote(settings, "model", 256)
    assert "secret" not in str(raised.value)
