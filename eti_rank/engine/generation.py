"""What a generation asks of SGLang, in this process or over HTTP, and how its answer is read."""

from collections.abc import Collection, Mapping
from typing import Any

from eti_rank.engine import readout, wire
from eti_rank.engine.protocol import Finish, Generated, GenerationStep
from eti_rank.errors import DomainError, UnsupportedRequest


def check(
    step: GenerationStep, *, vocabulary_size: int, max_prompt_tokens: int, hooks: Collection[str]
) -> None:
    """Refuse what SGLang would shorten, answer wrongly or die of, and what no hook is there for.

    Args:
        step: the step.
        vocabulary_size: V.
        max_prompt_tokens: longest prompt, with one token generated.
        hooks: that run in the scheduler process.

    Raises:
        UnsupportedRequest: says what is wrong and what would be right.
    """
    if step.max_new_tokens < 1:
        raise UnsupportedRequest(f"a generation has at least one token, got {step.max_new_tokens}")
    room = max_prompt_tokens + 1 - step.max_new_tokens
    if not 1 <= len(step.token_ids) <= room:
        raise UnsupportedRequest(
            f"a prompt of {len(step.token_ids)} tokens; with {step.max_new_tokens} new ones this engine "
            f"takes 1 to {room}"
        )
    readout.check_vocabulary(step.token_ids, vocabulary_size)
    if (control := step.control) is None:
        return
    try:
        control.check()
    except DomainError as error:
        raise UnsupportedRequest(str(error)) from None
    needed = {wire.SAMPLING} if control.temperature or control.bounds_top_k else set()
    needed |= {wire.ATTENTION} if control.pruning else set()
    if missing := sorted(needed - set(hooks)):
        raise UnsupportedRequest(f"hooks that are not on and are asked for: {', '.join(missing)}")
    if not {wire.SAMPLING, wire.ATTENTION} & set(hooks):
        raise UnsupportedRequest("a control needs the hook `sampling` or `attention`, and neither is on")


def request(step: GenerationStep) -> dict[str, Any]:
    """Arguments of SGLang's ``async_generate``, which are also the body of its ``/generate``."""
    told = wire.StepParams(
        expected_gain=step.expected_gain,
        arrived_s=step.arrived_s,
        shared_prefix_tokens=step.shared_prefix_tokens,
        decoding=step.control,
    )
    how = step.sampling
    params: dict[str, Any] = {
        "custom_params": told.encode(),
        "max_new_tokens": step.max_new_tokens,
        "temperature": how.temperature,
        "top_p": how.top_p,
        "top_k": -1 if how.top_k is None else how.top_k,
        "min_p": how.min_p,
        "frequency_penalty": how.frequency_penalty,
        "presence_penalty": how.presence_penalty,
        "ignore_eos": how.ignore_eos,
    }
    if how.stop:
        params["stop"] = list(how.stop)
    if how.json_schema is not None:
        params["json_schema"] = how.json_schema
    asked: dict[str, Any] = {"input_ids": list(step.token_ids), "sampling_params": params, "stream": True}
    if step.control and step.control.pruning and step.control.pruning.surprisal == "model":
        asked |= {"return_logprob": True, "logprob_start_len": 0}
    return asked


class Pieces:
    """Cuts SGLang's answers to one step, each of which holds everything so far, into what is new.

    Args:
        step: whose answers they are.
    """

    def __init__(self, step: GenerationStep) -> None:
        self._step = step
        self._tokens = 0
        self._characters = 0
        self._reports = 0

    def take(self, answer: Mapping[str, Any]) -> Generated:
        """What this answer adds.

        Raises:
            UnsupportedRequest: SGLang or our hooks refuse the step, or no hook reported where one should.
            HookError: the stamp is of another version.
        """
        meta_info = answer["meta_info"]
        hooks = readout.accepted(meta_info)
        token_ids, text = answer["output_ids"], answer.get("text") or ""
        reports = wire.decode_reports(meta_info)
        reason = meta_info.get("finish_reason")
        if self._step.control and len(reports) < len(token_ids):
            raise UnsupportedRequest(f"the hooks reported {len(reports)} of {len(token_ids)} tokens")
        piece = Generated(
            step_id=self._step.step_id,
            token_ids=tuple(token_ids[self._tokens :]),
            text=text[self._characters :],
            reports=reports[self._reports : len(token_ids)],
            finish=Finish(reason["type"]) if reason else None,
            prompt_tokens=len(self._step.token_ids),
            cached_tokens=int(meta_info.get("cached_tokens", 0)),
            hooks=hooks,
        )
        self._tokens, self._characters = len(token_ids), len(text)
        self._reports = min(len(reports), len(token_ids))
        return piece
