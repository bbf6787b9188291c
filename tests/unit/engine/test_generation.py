"""What a generation asks of SGLang, and how its cumulative answers are cut into pieces."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from eti_rank.engine import generation, wire
from eti_rank.engine.protocol import Finish, GenerationStep, Sampling
from eti_rank.errors import DomainError, UnsupportedRequest

CONTROL = wire.DecodingControl(
    temperature=wire.TemperatureControl(law="solve", target_nats=2.0),
    pruning=wire.PruningControl(protected=((0, 3), (8, 9)), surprisal="model"),
    bounds_top_k=20,
)
STEP = GenerationStep(step_id="s", token_ids=(1, 2, 3), max_new_tokens=5, control=CONTROL)
LIMITS: dict[str, Any] = {"vocabulary_size": 100, "max_prompt_tokens": 50}


def test_a_control_survives_the_wire() -> None:
    told = json.loads(json.dumps(generation.request(STEP)["sampling_params"]["custom_params"]))
    assert wire.StepParams.decode(told) == wire.StepParams(decoding=CONTROL)


def test_a_report_survives_the_wire() -> None:
    reports = [
        wire.TokenReport(entropy_nats=1.5, bounds_nats=(1.0, 2.0), reached=False),
        wire.TokenReport(kept_fraction=0.25, dropped_mass=0.0),
    ]
    meta_info = json.loads(json.dumps({wire.REPORTS_KEY: wire.encode_reports(reports)}))
    assert wire.decode_reports(meta_info) == tuple(reports)


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"gain": 1.0}, "gain: Unexpected"),
        ({"expected_gain": "much"}, "expected_gain"),
        ({"expected_gain": -1.0}, "expected_gain and shared_prefix_tokens must be >= 0"),
        ({"expected_gain": float("nan")}, "expected_gain"),
        ({"decoding": {"pruning": {"block_tokens": 0}}}, "block_tokens must be >= 1"),
        ({"decoding": {"pruning": {"max_dropped_mass": 1.0}}}, "max_dropped_mass"),
        ({"decoding": {"temperature": {"law": "solve"}}}, r"decoding\.temperature\.target_nats"),
        ({"decoding": {"temperature": {"law": "warm", "target_nats": 1}}}, r"decoding\.temperature\.law"),
        (
            {"decoding": {"temperature": {"law": "solve", "target_nats": 1, "start": 9.0}}},
            r"start must lie in \[0\.1, 2\.0\]",
        ),
        ({"decoding": {"bounds_top_k": 0}}, "bounds_top_k must be >= 1"),
    ],
)
def test_parameters_without_sense_are_errors(params: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DomainError, match=complaint):
        wire.StepParams.decode({wire.KEY: {"version": wire.VERSION, **params}})


def test_requests_of_others_are_not_ours() -> None:
    assert wire.StepParams.decode(None) is None
    assert wire.StepParams.decode({"theirs": 1}) is None
    with pytest.raises(DomainError, match="version"):
        wire.StepParams.decode({wire.KEY: {"version": 1}})


@pytest.mark.parametrize(
    ("hooks", "missing"),
    [
        ((), "attention, sampling"),
        ((wire.SAMPLING,), "attention"),
        ((wire.ATTENTION,), "sampling"),
    ],
)
def test_hooks_that_are_off_are_named(hooks: tuple[str, ...], missing: str) -> None:
    with pytest.raises(UnsupportedRequest, match=f": {missing}$"):
        generation.check(STEP, hooks=hooks, **LIMITS)
    generation.check(STEP, hooks=(wire.SAMPLING, wire.ATTENTION), **LIMITS)


def test_measuring_needs_a_hook_that_measures() -> None:
    step = GenerationStep(step_id="s", token_ids=(1,), max_new_tokens=1, control=wire.DecodingControl())
    with pytest.raises(UnsupportedRequest, match="neither is on"):
        generation.check(step, hooks=(wire.SCHEDULING,), **LIMITS)


def test_model_surprisal_asks_for_what_it_needs() -> None:
    assert generation.request(STEP)["logprob_start_len"] == 0
    plain = GenerationStep(step_id="s", token_ids=(1,), max_new_tokens=1, sampling=Sampling(stop=("x",)))
    asked = generation.request(plain)
    assert "return_logprob" not in asked
    assert asked["sampling_params"]["stop"] == ["x"]


def answer(tokens: list[int], text: str, reports: int, finish: str | None = None) -> dict[str, Any]:
    stamp = wire.Stamp("0.1", ("sampling",)).encode()
    report = {key: value for key, value in asdict(wire.TokenReport(entropy_nats=1.0)).items() if value}
    meta_info: dict[str, Any] = {wire.KEY: [stamp], wire.REPORTS_KEY: [report] * reports, "cached_tokens": 2}
    meta_info["finish_reason"] = {"type": finish} if finish else None
    return {"output_ids": tokens, "text": text, "meta_info": meta_info}


def test_pieces_hold_what_is_new() -> None:
    pieces = generation.Pieces(STEP)
    first = pieces.take(answer([7], "a", 1))
    second = pieces.take(answer([7, 8, 9], "abc", 3))
    last = pieces.take(answer([7, 8, 9], "abc", 4, "stop"))
    assert [piece.token_ids for piece in (first, second, last)] == [(7,), (8, 9), ()]
    assert [piece.text for piece in (first, second, last)] == ["a", "bc", ""]
    assert [len(piece.reports) for piece in (first, second, last)] == [1, 2, 0]
    assert (first.finish, last.finish) == (None, Finish.STOP)
    assert first.cached_tokens == 2
    assert first.hooks == ("sampling",)


def test_a_missing_report_is_an_error() -> None:
    with pytest.raises(UnsupportedRequest, match="reported 1 of 2"):
        generation.Pieces(STEP).take(answer([7, 8], "ab", 1))


def test_a_refusal_inside_the_scheduler_is_an_error_here() -> None:
    refused = answer([7], "a", 1)
    refused["meta_info"][wire.KEY] = [wire.Stamp("0.1", (), "law: unknown").encode()]
    with pytest.raises(UnsupportedRequest, match="the hooks refuse the step: law: unknown"):
        generation.Pieces(STEP).take(refused)
