"""The documents keep up with the code."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from eti_rank.models.profile import Profile, Tolerance, shipped_profiles
from eti_rank.service.problems import FRAMEWORK_TYPES, PROBLEMS
from eti_rank.settings import PREFIX, STANDALONE, Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


def test_architecture_is_short_and_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert len(text.splitlines()) <= 60
    packages = {path.parent.name for path in (ROOT / "eti_rank").glob("*/__init__.py")}
    assert [name for name in packages if f"`{name}`" not in text] == []


def test_every_key_of_a_profile_is_documented() -> None:
    documented = [name for name, *_ in _rows("models.md", "Keys")]
    assert sorted(documented) == sorted(set(_keys(Profile)))


def _keys(annotation: object) -> Iterator[str]:
    """Dotted names of all that a model's TOML may hold; a union's members are all taken."""
    for model in _models(annotation):
        for key, field in model.model_fields.items():
            # A tolerance is written as one value, a table or a number.
            inner = [] if field.annotation is Tolerance else list(_keys(field.annotation))
            yield from (f"{key}.{name}" for name in inner) if inner else (key,)


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def test_every_shipped_profile_is_documented() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    assert [name for name in shipped_profiles() if f"| `{name}` |" not in text] == []


def test_every_setting_is_documented_with_its_default_and_its_variable() -> None:
    rows = _rows("configuration.md", "Settings")
    documented = {
        name: (None if default == "unset" else tomllib.loads(f"x = {default}")["x"], variable)
        for name, default, variable, _meaning in rows
    }
    assert len(rows) == len(documented)
    assert documented == {
        ".".join(path): (value, PREFIX + "__".join(path).upper())
        for path, value in _leaves(Settings.model_construct().model_dump(mode="json"))
    }


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, (*path, key))


def test_every_variable_that_is_no_setting_is_documented() -> None:
    rows = _rows("configuration.md", "Variables that are not settings")
    assert sorted(name for name, _meaning in rows) == sorted(PREFIX + name for name in STANDALONE)


def test_every_error_that_the_service_answers_is_documented() -> None:
    rows = _rows("operating.md", "Errors")
    answered = {(problem.status, problem.type) for problem in PROBLEMS.values()} | {*FRAMEWORK_TYPES.items()}
    assert sorted((int(status), kind) for status, kind, *_ in rows) == sorted(answered)


def _rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without the marks of code; the head of the table left out."""
    section = re.split(r"^## ", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    (text,) = [part for part in section if part.splitlines()[0] == heading]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [
        [cell.strip().removeprefix("`").removesuffix("`") for cell in line.split("|")[1:-1]] for line in lines
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
