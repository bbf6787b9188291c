"""What a worker must prove before it gets steps.

It answers, serves a model of the checkpoint's architecture with room for our longest prompt, executes
no code that it is sent, comes back stamped by our hooks, and gives the same log-probabilities to the
same step as the worker that was admitted first. Of a router, each worker that it takes for healthy
proves all this at its own address, and the router that it passes steps and answers on unchanged.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from eti_rank.engine import handshake, readout
from eti_rank.engine.protocol import Evidence
from eti_rank.engine.sglang_remote.client import WorkerClient
from eti_rank.engine.sglang_remote.faults import WorkerFault
from eti_rank.errors import ConfigurationError, HookError, UnsupportedRequest


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """What the checkpoint's ``config.json`` says."""

    architectures: tuple[str, ...]
    vocabulary_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What a worker says of itself; for a router, what its workers have in common."""

    url: str
    model: str
    architectures: tuple[str, ...]
    device: str
    dtype: str
    max_prompt_tokens: int
    max_running_requests: int
    """For a router, of all its workers together."""
    executes_code: bool
    """Whether it takes custom logit processors, which arrive as serialised code."""
    generates: bool
    """Whether it has a tokenizer."""
    hooks: tuple[str, ...]
    """Ours, that ran for the probe."""
    probe_logprobs: tuple[float, ...]
    """Nats, for the labels of `handshake.PROBE`."""


class Admission:
    """Decides whether a worker is fit; the first that is sets the standard for the others.

    Args:
        config: of the checkpoint that prompts are rendered for.
        max_prompt_tokens: longest prompt that will be asked for.
        hooks: that must run in SGLang's processes, as `handshake.wanted_hooks` gives them.
    """

    def __init__(
        self, config: CheckpointConfig, *, max_prompt_tokens: int, hooks: tuple[str, ...] | None
    ) -> None:
        self._config = config
        self._max_prompt_tokens = max_prompt_tokens
        self._hooks = hooks
        self._standard: WorkerFacts | None = None

    async def examine(self, client: WorkerClient, rids: Iterator[str], *, timeout_s: float) -> WorkerFacts:
        """Ask a worker, or a router and its workers, everything, and look at each by itself.

        Args:
            client: speaks to it.
            rids: ids for the probes.
            timeout_s: for each probe.

        Raises:
            WorkerFault: it does not answer as SGLang does.
            ConfigurationError: it serves something else than what is wanted.
            HookError: our hooks did not run for the probe.
        """
        try:
            await client.look_behind()
            if client.behind is None:
                return await self._examine_worker(client, rids, timeout_s)
            return await self._examine_router(client, rids, timeout_s)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise WorkerFault(f"it does not describe itself as SGLang does: {error!r}") from None
        except UnsupportedRequest as refusal:
            raise WorkerFault(f"it refuses what every worker takes: {refusal}") from None

    def admit(self, facts: WorkerFacts) -> None:
        """Compare a worker with the one that was admitted first; the first one is.

        Raises:
            ConfigurationError: they differ by more than the noise floor, or in their type of computation.
        """
        if self._standard is None:
            self._standard = facts
        _compare(facts, self._standard)

    async def _examine_worker(
        self, client: WorkerClient, rids: Iterator[str], timeout_s: float
    ) -> WorkerFacts:
        model, server = await client.info("/model_info"), await client.info("/server_info")
        evidence = await self._probe(client, rids, timeout_s)
        facts = WorkerFacts(
            url=client.url,
            model=str(model["model_path"]),
            architectures=tuple(model["architectures"]),
            device=str(server["device"]),
            dtype=str(server["dtype"]),
            # One place stays free for the token that a label step samples.
            max_prompt_tokens=int(server["max_req_input_len"]) - 1,
            max_running_requests=int(server["max_running_requests"]),
            executes_code=bool(server["enable_custom_logit_processor"]),
            generates=not server["skip_tokenizer_init"],
            hooks=evidence.hooks,
            probe_logprobs=evidence.logprobs,
        )
        self._check(facts)
        return facts

    async def _examine_router(
        self, client: WorkerClient, rids: Iterator[str], timeout_s: float
    ) -> WorkerFacts:
        """A worker that does not answer is the router's to avoid; one that answers must be fit."""
        workers = list((client.behind or {}).values())
        asked = (self._examine_worker(worker, rids, timeout_s) for worker in workers)
        found = await asyncio.gather(*asked, return_exceptions=True)
        facts: list[WorkerFacts] = []
        for worker, result in zip(workers, found, strict=True):
            if isinstance(result, WorkerFacts):
                _compare(result, facts[0] if facts else result)
                facts.append(result)
            elif isinstance(result, ConfigurationError | HookError):
                raise type(result)(f"worker {worker.url} behind it: {result}")
            elif not isinstance(result, WorkerFault):
                raise result
        if not facts:
            raise WorkerFault(f"of the {len(workers)} workers that it takes for healthy, none answers here")
        evidence = await self._probe(client, rids, timeout_s)
        return replace(
            facts[0],
            url=client.url,
            device="+".join(sorted({each.device for each in facts})),
            max_prompt_tokens=min(each.max_prompt_tokens for each in facts),
            max_running_requests=sum(each.max_running_requests for each in facts),
            generates=all(each.generates for each in facts),
            hooks=evidence.hooks,
            probe_logprobs=evidence.logprobs,
        )

    async def _probe(self, client: WorkerClient, rids: Iterator[str], timeout_s: float) -> Evidence:
        body = readout.request(handshake.PROBE) | {"rid": next(rids)}
        meta_info = await client.generate(body, timeout_s=timeout_s)
        handshake.prove(meta_info, hooks=self._hooks)
        return readout.evidence(handshake.PROBE, meta_info)

    def _check(self, facts: WorkerFacts) -> None:
        if facts.architectures != self._config.architectures:
            raise ConfigurationError(
                f"it serves {'/'.join(facts.architectures)}; the model here is "
                f"{'/'.join(self._config.architectures)}"
            )
        if facts.max_prompt_tokens < self._max_prompt_tokens:
            raise ConfigurationError(
                f"it takes prompts of {facts.max_prompt_tokens} tokens; the profile renders up to "
                f"{self._max_prompt_tokens}"
            )
        if facts.executes_code:
            raise ConfigurationError(
                "it takes custom logit processors, so it executes code that it is sent; start it without "
                "enable_custom_logit_processor"
            )


def _compare(facts: WorkerFacts, standard: WorkerFacts) -> None:
    if facts.dtype != standard.dtype:
        raise ConfigurationError(f"it computes in {facts.dtype}, worker {standard.url} in {standard.dtype}")
    pairs = zip(facts.probe_logprobs, standard.probe_logprobs, strict=True)
    difference_nats = max(abs(one - other) for one, other in pairs)
    if not difference_nats <= readout.noise_floor_nats(facts.dtype):  # so that NaN is refused too
        raise ConfigurationError(
            f"it serves other weights than worker {standard.url}: a log-probability of the probe "
            f"differs by {difference_nats:.2g} nats"
        )


def read_checkpoint_config(checkpoint: str) -> CheckpointConfig:
    """Read ``config.json`` of a folder, or of a hub's model that has been looked at on this machine.

    Raises:
        ConfigurationError: it is not there, or says nothing of architecture or vocabulary.
    """
    try:
        config = json.loads(_config_file(checkpoint).read_text(encoding="utf-8"))
        vocabulary_size = int((config.get("text_config") or config)["vocab_size"])
        return CheckpointConfig(tuple(config["architectures"]), vocabulary_size)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"config.json of model {checkpoint} cannot be read: {error!r}") from None


def _config_file(checkpoint: str) -> Path:
    if Path(checkpoint).is_dir():
        return Path(checkpoint) / "config.json"
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - a second of import

    cached = try_to_load_from_cache(checkpoint, "config.json")
    if not isinstance(cached, str):
        raise FileNotFoundError("neither a folder nor a hub's model that is known on this machine")
    return Path(cached)
