"""What a worker must prove before it gets steps.

It answers, serves a model of the checkpoint's architecture with room for our longest prompt, executes
no code that it is sent, comes back stamped by our hooks, and gives the same log-probabilities to the
same step as the worker that was admitted first.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eti_rank.engine import handshake, readout
from eti_rank.engine.sglang_remote.client import WorkerClient
from eti_rank.engine.sglang_remote.faults import WorkerFault
from eti_rank.errors import ConfigurationError, UnsupportedRequest


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """What the checkpoint's ``config.json`` says."""

    architectures: tuple[str, ...]
    vocabulary_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What a worker, or the worker behind a router that was asked, says of itself."""

    url: str
    model: str
    architectures: tuple[str, ...]
    device: str
    dtype: str
    max_prompt_tokens: int
    max_running_requests: int
    """Over all healthy workers, for a router."""
    executes_code: bool
    """Whether it takes custom logit processors, which arrive as serialised code."""
    hooks: tuple[str, ...]
    """Ours, that ran for the probe."""
    probe_logprobs: tuple[float, ...]
    """Nats, for the labels of `handshake.PROBE`."""


class Admission:
    """Decides whether a worker is fit; the first that is sets the standard for the others.

    Args:
        config: of the checkpoint that prompts are rendered for.
        max_prompt_tokens: longest prompt that will be asked for.
        plugin: whether our hooks are wanted in SGLang's processes.
    """

    def __init__(self, config: CheckpointConfig, *, max_prompt_tokens: int, plugin: bool) -> None:
        self._config = config
        self._max_prompt_tokens = max_prompt_tokens
        self._plugin = plugin
        self._standard: WorkerFacts | None = None

    async def examine(self, client: WorkerClient, rid: str, *, timeout_s: float) -> WorkerFacts:
        """Ask a worker everything and look at each answer by itself.

        Raises:
            WorkerFault: it does not answer as an SGLang server does.
            ConfigurationError: it serves something else than what is wanted.
            HookError: our hooks did not run for the probe.
        """
        try:
            facts = await self._ask(client, rid, timeout_s)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise WorkerFault(f"it does not describe itself as SGLang does: {error!r}") from None
        except UnsupportedRequest as refusal:
            raise WorkerFault(f"it refuses what every worker takes: {refusal}") from None
        self._check(facts)
        return facts

    def admit(self, facts: WorkerFacts) -> None:
        """Compare a worker with the one that was admitted first; the first one is.

        Raises:
            ConfigurationError: they differ by more than the noise floor, or in their type of computation.
        """
        if self._standard is None:
            self._standard = facts
        standard = self._standard
        if facts.dtype != standard.dtype:
            raise ConfigurationError(
                f"it computes in {facts.dtype}, worker {standard.url} in {standard.dtype}"
            )
        pairs = zip(facts.probe_logprobs, standard.probe_logprobs, strict=True)
        difference_nats = max(abs(one - other) for one, other in pairs)
        if not difference_nats <= readout.noise_floor_nats(facts.dtype):  # so that NaN is refused too
            raise ConfigurationError(
                f"it serves other weights than worker {standard.url}: a log-probability of the probe "
                f"differs by {difference_nats:.2g} nats"
            )

    async def _ask(self, client: WorkerClient, rid: str, timeout_s: float) -> WorkerFacts:
        behind = await client.workers_behind()
        model, server = await client.info("model_info"), await client.info("server_info")
        body = readout.request(handshake.PROBE) | {"rid": rid}
        meta_info = await client.generate(body, timeout_s=timeout_s)
        hooks = handshake.prove(meta_info, plugin=self._plugin)
        return WorkerFacts(
            url=client.url,
            model=str(model["model_path"]),
            architectures=tuple(model["architectures"]),
            device=str(server["device"]),
            dtype=str(server["dtype"]),
            # One place stays free for the token that a label step samples.
            max_prompt_tokens=int(server["max_req_input_len"]) - 1,
            max_running_requests=int(server["max_running_requests"]) * _healthy(behind),
            executes_code=bool(server["enable_custom_logit_processor"]),
            hooks=hooks,
            probe_logprobs=readout.evidence(handshake.PROBE, meta_info, hooks).logprobs,
        )

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


def _healthy(behind: list[dict[str, Any]] | None) -> int:
    return 1 if behind is None else sum(bool(worker.get("is_healthy")) for worker in behind)


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
