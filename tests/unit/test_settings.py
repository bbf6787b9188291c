"""Settings of sections within sections."""

import pytest

from eti_rank.errors import ConfigurationError
from eti_rank.settings import load_settings


def test_a_section_within_a_section_is_set_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETI_RANK_ENGINE__REMOTE__URLS", '["http://a:1", "http://b:2"]')
    monkeypatch.setenv("ETI_RANK_ENGINE__REMOTE__API_KEY", "open-sesame")
    settings = load_settings()
    assert settings.engine.remote.urls == ("http://a:1", "http://b:2")
    assert "open-sesame" not in repr(settings)


@pytest.mark.parametrize(
    "name",
    [
        "ENGINE__REMOTE__URL",
        "ENGINE__REMOTE__URLS__0",
        "ENGINE__DEVICE__KIND",
        "REMOTE__URLS",
        "ENGINE",
        "URLS",
    ],
)
def test_an_unknown_name_at_any_depth_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"ETI_RANK_{name}", "x")
    with pytest.raises(ConfigurationError, match=f"ETI_RANK_{name} is not a setting"):
        load_settings()


def test_the_right_names_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETI_RANK_ENGINE__REMOTE__URL", "x")
    with pytest.raises(ConfigurationError, match="there is urls, api_key, require_all"):
        load_settings()
