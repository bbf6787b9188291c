"""What a step asks of SGLang, in this process or over HTTP, and how its answer is read."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from eti_rank.engine import wire
from eti_rank.engine.protocol import Evidence, Labels, ScoringStep
from eti_rank.errors import UnsupportedRequest

NOISE_FLOOR_NATS: Final = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest change of a label's or mean log-probability between batch compositions, by dtype.

float32 is measured (``python -m eval.parity``); the others are bounds to be measured on a GPU.
"""


def noise_floor_nats(dtype: str) -> float:
    """The noise floor of a type; that of the coarsest for a type that is not listed."""
    return NOISE_FLOOR_NATS.get(dtype, NOISE_FLOOR_NATS["bfloat16"])


def check(step: ScoringStep, *, vocabulary_size: int, max_prompt_tokens: int) -> None:
    """Refuse what SGLang would answer wrongly or die of.

    Raises:
        UnsupportedRequest: a length or a token out of range, no label, or a start outside the prompt.
    """
    if not 1 <= len(step.token_ids) <= max_prompt_tokens:
        raise UnsupportedRequest(
            f"a step of {len(step.token_ids)} tokens; this engine takes 1 to {max_prompt_tokens}"
        )
    labels = step.readout.token_ids if isinstance(step.readout, Labels) else ()
    check_vocabulary((*step.token_ids, *labels), vocabulary_size)
    if isinstance(step.readout, Labels):
        if not labels:
            raise UnsupportedRequest("a label step names at least one label token")
    elif not 1 <= step.readout.start < len(step.token_ids):
        raise UnsupportedRequest(
            f"likelihood from position {step.readout.start} of {len(step.token_ids)} tokens; "
            "the first scored token has one before it"
        )


def check_vocabulary(token_ids: Iterable[int], vocabulary_size: int) -> None:
    """Raise UnsupportedRequest for the first token that the model does not know."""
    for token in token_ids:
        if not 0 <= token < vocabulary_size:
            raise UnsupportedRequest(f"token {token} is outside the vocabulary of {vocabulary_size}")


def accepted(meta_info: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the hooks that ran, if SGLang and our hooks took the step.

    Raises:
        UnsupportedRequest: one of them did not; says why.
        HookError: the stamp is of another version.
    """
    reason = meta_info.get("finish_reason") or {}
    if reason.get("type") == "abort":
        raise UnsupportedRequest(f"SGLang aborted the step: {reason.get('message', 'no reason given')}")
    stamp = wire.Stamp.decode(meta_info)
    if stamp and stamp.refusal:
        raise UnsupportedRequest(f"the hooks refuse the step: {stamp.refusal}")
    return stamp.hooks if stamp else ()


def request(step: ScoringStep) -> dict[str, Any]:
    """Arguments of SGLang's ``async_generate``, which are also the body of its ``/generate``.

    Labels: one token is sampled, at no extra forward pass, because SGLang reports the distribution
    after the prompt with the first output token. Likelihood: none; ``logprob_start_len`` is one less
    than the first scored position, and what lies before it may come from the radix cache.
    """
    common: dict[str, Any] = {"input_ids": list(step.token_ids), "return_logprob": True}
    told = wire.StepParams(
        expected_gain=step.expected_gain,
        arrived_s=step.arrived_s,
        shared_prefix_tokens=step.shared_prefix_tokens,
    )
    params = {"custom_params": told.encode(), "temperature": 0.0}
    if isinstance(step.readout, Labels):
        return common | {
            "sampling_params": params | {"max_new_tokens": 1, "ignore_eos": True},
            "token_ids_logprob": list(step.readout.token_ids),
            "logprob_start_len": len(step.token_ids) - 1,
        }
    return common | {
        "sampling_params": params | {"max_new_tokens": 0},
        "logprob_start_len": step.readout.start - 1,
    }


def evidence(step: ScoringStep, meta_info: dict[str, Any]) -> Evidence:
    """Read an answer's ``meta_info``.

    Raises:
        UnsupportedRequest: SGLang aborted the step, or answered another number of values.
        HookError: the stamp is of another version.
    """
    hooks = accepted(meta_info)
    if isinstance(step.readout, Labels):
        by_token = {token: logprob for logprob, token, _ in meta_info["output_token_ids_logprobs"][0]}
        logprobs = tuple(float(by_token[token]) for token in step.readout.token_ids)
    else:
        scored = meta_info["input_token_logprobs"][1:]
        logprobs = tuple(float(logprob) for logprob, _, _ in scored)
        if len(logprobs) != len(step.token_ids) - step.readout.start:
            raise UnsupportedRequest(f"SGLang scored {len(logprobs)} tokens of {len(step.token_ids)}")
    return Evidence(
        step_id=step.step_id,
        logprobs=logprobs,
        prompt_tokens=len(step.token_ids),
        cached_tokens=int(meta_info.get("cached_tokens", 0)),
        hooks=hooks,
    )
