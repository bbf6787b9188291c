import math
from pathlib import Path
from typing import Any

import pytest

from eti_rank.errors import ModelUnavailable, ProfileError
from eti_rank.models.profile import GoldenScore, Platt, load_profile
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


def test_golden_scores_are_compared(tmp_path: Path) -> None:
    golden = load_profile("qwen3-reranker-0.6b").golden
    known = golden.model_copy(
        update={"scores": (GoldenScore(query="q", document="d", raw_score=1.0),), "tolerance_nats": 0.1}
    )
    made = model(tmp_path, golden=known)
    assert made.golden_pairs == [("q", "d")]
    made.check_golden([1.09])
    for wrong in (1.2, math.nan):
        with pytest.raises(ProfileError, match="'q' must score 1.0000"):
            made.check_golden([wrong])


def test_a_profile_without_golden_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="model.check_golden = false"):
        model(tmp_path).check_golden([])


def test_shared_prefix(tmp_path: Path) -> None:
    def prompt(*tokens: int) -> Prompt:
        return Prompt(token_ids=tokens, likelihood_start=1, document_tokens=1, truncated_tokens=0)

    made = model(tmp_path)
    assert made.shared_prefix_tokens([prompt(1, 2, 3), prompt(1, 2, 4, 5)]) == 2
    assert made.shared_prefix_tokens([prompt(1, 2), prompt(1, 2)]) == 2
    assert made.shared_prefix_tokens([prompt(1, 2)]) == 0
    assert made.shared_prefix_tokens([]) == 0


def test_prepares_a_folder(tmp_path: Path) -> None:
    make_tiny_tokenizer(tmp_path, "qwen3")
    made = prepare_model(ModelSettings(profile="qwen3-reranker-0.6b", path=str(tmp_path)))
    assert made.checkpoint == str(tmp_path)


def test_a_folder_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no tokenizer.json"):
        prepare_model(ModelSettings(profile="qwen3-reranker-0.6b", path=str(tmp_path)))
