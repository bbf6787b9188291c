import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eti_rank.errors import ModelUnavailable, ProfileError
from eti_rank.models.profile import GoldenScore, Platt, Tolerance, load_profile
from eti_rank.models.prompt import Prompt
from eti_rank.models.reranker_model import RerankModel, prepare_model
from eti_rank.settings import ModelSettings
from tests.tiny_models import make_tiny_tokenizer


def model(tmp_path: Path, profile: str = "qwen3-reranker-0.6b", **changes: Any) -> RerankModel:
    architecture = {"qwen3-reranker-0.6b": "qwen3", "smollm2-135m-instruct": "llama"}[profile]
    tokenizer = make_tiny_tokenizer(tmp_path, architecture)
    return RerankModel(load_profile(profile).model_copy(update=changes), str(tmp_path), tokenizer)


def test_label_score_is_the_log_odds(tmp_path: Path) -> None:
    made = model(tmp_path)
    assert len(made.label_token_ids) == 2
    assert made.raw_score([math.log(0.6), math.log(0.2)]) == pytest.approx(math.log(3))
    assert made.relevance(math.log(3)) == pytest.approx(0.75)


def test_spellings_of_a_label_add_up(tmp_path: Path) -> None:
    labels = load_profile("qwen3-reranker-0.6b").labels
    assert labels is not None
    made = model(tmp_path, labels=labels.model_copy(update={"positive": ("yes", "Yes")}))
    assert made.raw_score([math.log(p) for p in (0.3, 0.3, 0.2)]) == pytest.approx(math.log(3))


def test_labels_of_one_token_are_an_error(tmp_path: Path) -> None:
    labels = load_profile("qwen3-reranker-0.6b").labels
    assert labels is not None
    with pytest.raises(ProfileError, match="same token"):
        model(tmp_path, labels=labels.model_copy(update={"positive": ("no",)}))


def test_likelihood_score_is_the_mean(tmp_path: Path) -> None:
    made = model(tmp_path, "smollm2-135m-instruct")
    assert made.label_token_ids == ()
    assert made.raw_score([-1.0, -2.0, -6.0]) == pytest.approx(-3.0)
    assert made.relevance(-3.0) == pytest.approx(math.exp(-3))


def test_calibration_decides_the_relevance(tmp_path: Path) -> None:
    plain = model(tmp_path)
    fitted = model(tmp_path, calibration=Platt(method="platt", slope=2.0, intercept=1.0))
    assert (plain.calibrated, fitted.calibrated) == (False, True)
    assert fitted.relevance(-0.5) == pytest.approx(0.5)


@pytest.mark.parametrize("raw", [-1e4, -50.0, 0.0, 50.0, 1e4])
@pytest.mark.parametrize("profile", ["qwen3-reranker-0.6b", "smollm2-135m-instruct"])
def test_relevance_stays_in_its_range(tmp_path: Path, profile: str, raw: float) -> None:
    assert 0 <= model(tmp_path, profile).relevance(raw) <= 1


def golden_model(tmp_path: Path) -> RerankModel:
    golden = load_profile("qwen3-reranker-0.6b").golden
    tolerance = Tolerance(float32=0.1, float16=0.2, bfloat16=0.4)
    scores = (
        GoldenScore(query="q", document="first", raw_score=0.0),
        GoldenScore(query="q", document="second", raw_score=1.0),
    )
    return model(tmp_path, golden=golden.model_copy(update={"scores": scores, "tolerance_nats": tolerance}))


def test_golden_scores_are_compared(tmp_path: Path) -> None:
    made = golden_model(tmp_path)
    assert made.golden_pairs == [("q", "first"), ("q", "second")]
    made.check_golden([0.0, 1.09])
    with pytest.raises(
        ProfileError, match="'second' must score 1.0000 nats and scores 1.2000, off by 0.2000"
    ):
        made.check_golden([0.0, 1.2])
    with pytest.raises(ProfileError, match="'first' must score"):
        made.check_golden([math.nan, 1.0])


@pytest.mark.parametrize(("dtype", "off"), [("float32", 0.15), ("float16", 0.3), ("bfloat16", 0.5)])
def test_golden_scores_of_low_precision_may_be_further_off(tmp_path: Path, dtype: str, off: float) -> None:
    made = golden_model(tmp_path)
    made.check_golden([0.0, 1.0 + 0.6 * off], dtype=dtype)
    with pytest.raises(ProfileError, match=f"{dtype} allows"):
        made.check_golden([0.0, 1.0 + off], dtype=dtype)


def test_a_profile_without_golden_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="model.check_golden = false") as refused:
        model(tmp_path).check_golden([])
    assert "python -m eval.golden --profile qwen3-reranker-0.6b" in str(refused.value)


def test_the_embedded_profile_has_three_golden_scores_or_more() -> None:
    assert len(load_profile("smollm2-135m-instruct").golden.scores) >= 3


def test_shared_prefix(tmp_path: Path) -> None:
    def prompt(*tokens: int) -> Prompt:
        return Prompt(token_ids=tokens, likelihood_start=1, document_tokens=1, truncated_tokens=0)

    made = model(tmp_path)
    assert made.shared_prefix_tokens([prompt(1, 2, 3), prompt(1, 2, 4, 5)]) == 2
    assert made.shared_prefix_tokens([prompt(1, 2), prompt(1, 2)]) == 2
    assert made.shared_prefix_tokens([prompt(1, 2)]) == 0
    assert made.shared_prefix_tokens([]) == 0


def folder_of(tmp_path: Path, config: str | None) -> ModelSettings:
    make_tiny_tokenizer(tmp_path, "qwen3")
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    return ModelSettings(profile="qwen3-reranker-0.6b", path=str(tmp_path))


def test_prepares_a_folder(tmp_path: Path) -> None:
    made = prepare_model(folder_of(tmp_path, '{"architectures": ["Qwen3ForCausalLM"]}'))
    assert made.checkpoint == str(tmp_path)


def test_another_architecture_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="made for Qwen3ForCausalLM; model .* is .'LlamaForCausalLM'"):
        prepare_model(folder_of(tmp_path, '{"architectures": ["LlamaForCausalLM"]}'))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [(None, "no config.json"), ("{", "cannot be read"), ("{}", "'architectures'"), ("[]", "cannot be read")],
)
def test_a_folder_without_a_readable_configuration_is_an_error(
    tmp_path: Path, config: str | None, complaint: str
) -> None:
    with pytest.raises(ModelUnavailable, match=complaint):
        prepare_model(folder_of(tmp_path, config))


def test_a_folder_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    settings = folder_of(tmp_path, '{"architectures": ["Qwen3ForCausalLM"]}')
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelUnavailable, match="no tokenizer.json"):
        prepare_model(settings)


def test_importing_models_is_light() -> None:
    code = (
        "import sys, eti_rank.models.reranker_model; "
        "print(sorted({'torch', 'transformers', 'sglang', 'fastapi', 'huggingface_hub'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
