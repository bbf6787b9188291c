from pathlib import Path
from typing import Any

import pytest

from eti_rank.errors import ProfileError
from eti_rank.models.profile import load_profile, shipped_profiles
from eti_rank.types import ScoreType

MINIMAL = """
name = "mine"
architecture = "LlamaForCausalLM"
scorer = "label"
[source]
kind = "checkpoint"
path = "somewhere"
[template]
parts = ["{query}", "{document}"]
[labels]
positive = ["yes"]
negative = ["no"]
[limits]
max_prompt_tokens = 100
max_query_tokens = 10
[golden]
tolerance_nats = { float32 = 0.1, float16 = 0.2, bfloat16 = 0.4 }
"""


def load(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "profile.toml"
    path.write_text(text)
    return load_profile(str(path))


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_shipped_profile_loads_under_its_own_name(name: str) -> None:
    assert load_profile(name).name == name


def test_the_four_are_shipped() -> None:
    assert shipped_profiles() == [
        "bge-reranker-v2-gemma",
        "mxbai-rerank-base-v2",
        "qwen3-reranker-0.6b",
        "smollm2-135m-instruct",
    ]


def test_a_path_loads(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).scorer is ScoreType.LABEL


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "mine"', "", "name: Field required"),
        ('name = "mine"', 'name = "mine"\ntypo = 1', "typo: Extra inputs"),
        ('scorer = "label"', 'scorer = "guess"', "scorer: Input should be"),
        ("{query}", "", "{query} exactly once"),
        ("{query}", "{query} {doc}", "{doc} is no placeholder; there are query, document, instruction"),
        ("max_query_tokens = 10", "max_query_tokens = 100", "must be below max_prompt_tokens"),
        ("bfloat16 = 0.4", "bfloat16 = 0", "golden.tolerance_nats.bfloat16"),
        (", bfloat16 = 0.4", "", "golden.tolerance_nats.bfloat16: Field required"),
        ("[labels]", 'instruction_prefix = "{query}"\n[labels]', "must hold {instruction} and no other"),
        ("{query}", "{query}{query}", "{query} exactly once"),
        ("{document}", "{document}{instruction}", "needs a default_instruction"),
        ('scorer = "label"', 'scorer = "likelihood"', r"needs \[labels\]"),
        ('positive = ["yes"]', "positive = []", "labels.positive"),
        ('kind = "checkpoint"', 'kind = "elsewhere"', "source"),
        ("[golden]", "[golden", "profile"),
    ],
)
def test_a_wrong_profile_says_what_is_wrong(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    with pytest.raises(ProfileError, match=complaint):
        load(tmp_path, MINIMAL.replace(old, new))


@pytest.mark.parametrize(
    ("parts", "right"),
    [
        ('["{document}", "{query}"]', True),
        ('["{document}", "Q: {query}"]', True),
        ('["{query}", "{document}"]', False),
        ('["{document}", "{query}?"]', False),
        ('["{document} {query}"]', False),
    ],
)
def test_likelihood_must_end_with_the_query_in_a_part_without_the_document(
    tmp_path: Path, parts: str, right: bool
) -> None:
    text = MINIMAL.replace('"label"', '"likelihood"').replace('["{query}", "{document}"]', parts)
    text = text.replace('[labels]\npositive = ["yes"]\nnegative = ["no"]\n', "")
    if right:
        assert load(tmp_path, text).scorer is ScoreType.LIKELIHOOD
    else:
        with pytest.raises(ProfileError, match="the last part must end with {query}"):
            load(tmp_path, text)


@pytest.mark.parametrize(
    ("dtype", "allowed"), [("float32", 0.1), ("float16", 0.2), ("bfloat16", 0.4), ("float8_e4m3fn", 0.4)]
)
def test_a_type_of_lower_precision_has_a_wider_tolerance(tmp_path: Path, dtype: str, allowed: float) -> None:
    assert load(tmp_path, MINIMAL).golden.tolerance_nats.of(dtype) == allowed


def test_one_tolerance_stands_for_all_types(tmp_path: Path) -> None:
    table = "{ float32 = 0.1, float16 = 0.2, bfloat16 = 0.4 }"
    tolerance = load(tmp_path, MINIMAL.replace(table, "0.3")).golden.tolerance_nats
    assert (tolerance.float32, tolerance.float16, tolerance.bfloat16) == (0.3, 0.3, 0.3)


def test_unknown_name_lists_the_shipped(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="qwen3-reranker-0.6b"):
        load_profile("qwen4")
    with pytest.raises(ProfileError, match="No such file"):
        load_profile(str(tmp_path / "gone.toml"))


def test_fingerprint_changes_with_anything_that_forms_a_prompt(tmp_path: Path) -> None:
    plain = load(tmp_path, MINIMAL).template_id
    assert plain.startswith("mine@")
    assert load(tmp_path, MINIMAL.replace('"{query}"', '"{query} "')).template_id != plain
    assert load(tmp_path, MINIMAL.replace("0.1", "0.15")).template_id == plain
