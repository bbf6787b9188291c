"""The documents keep up with the code."""

import re
from pathlib import Path

import pytest

from eti_rank.models.profile import Profile, shipped_profiles

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


def test_architecture_is_short_and_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert len(text.splitlines()) <= 60
    packages = {path.parent.name for path in (ROOT / "eti_rank").glob("*/__init__.py")}
    assert [name for name in packages if f"`{name}`" not in text] == []


def test_every_key_and_every_shipped_profile_is_documented() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    assert [name for name in (*Profile.model_fields, *shipped_profiles()) if name not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
