"""The page on workers keeps up with the settings."""

from pathlib import Path

from eti_rank.settings import RemoteSettings

PAGE = Path(__file__).parents[4] / "docs" / "workers.md"


def test_every_setting_is_documented() -> None:
    text = PAGE.read_text()
    assert [name for name in RemoteSettings.model_fields if f"`{name}`" not in text] == []
