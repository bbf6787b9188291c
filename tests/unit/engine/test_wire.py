import json

import pytest

from eti_rank.engine import wire
from eti_rank.errors import HookError


def test_plugin_config_round_trips() -> None:
    config = wire.PluginConfig(hooks=("telemetry", "scheduling"))
    assert wire.PluginConfig.decode(config.encode()) == config


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "{", '{"hooks": []}', '{"version": 2}', '{"version": 1, "hooks": []}'],
)
def test_unreadable_plugin_config_is_an_error(text: str) -> None:
    with pytest.raises(HookError, match=wire.PLUGIN_VARIABLE):
        wire.PluginConfig.decode(text)


def test_unknown_key_in_plugin_config_is_an_error() -> None:
    with pytest.raises(HookError, match="hoks"):
        wire.PluginConfig.decode('{"version": 2, "hooks": [], "hoks": 1}')


def test_stamp_round_trips_through_json_and_the_last_one_counts() -> None:
    first, last = wire.Stamp("0.1", ("a",)), wire.Stamp("0.1", ("a", "b"))
    meta_info = json.loads(json.dumps({wire.KEY: [first.encode(), last.encode()]}))
    assert wire.Stamp.decode(meta_info) == last


@pytest.mark.parametrize("meta_info", [{}, {wire.KEY: []}, {wire.KEY: None}])
def test_no_stamp(meta_info: dict[str, object]) -> None:
    assert wire.Stamp.decode(meta_info) is None


def test_stamp_of_another_version_is_an_error() -> None:
    with pytest.raises(HookError, match="version 99"):
        wire.Stamp.decode({wire.KEY: [{"version": 99}]})


@pytest.mark.parametrize(
    ("stamp", "complaint"),
    [
        (None, "without a stamp"),
        (wire.Stamp("0.2", ("a", "b")), r"runs eti-rank 0\.2, this process 0\.1"),
        (wire.Stamp("0.1", ("b",)), "did not run for the probe: a"),
    ],
)
def test_handshake_says_what_is_missing(stamp: wire.Stamp | None, complaint: str) -> None:
    with pytest.raises(HookError, match=complaint):
        wire.check_stamp(stamp, plugin="0.1", hooks=("a", "b"))


def test_handshake_accepts_what_it_asked_for() -> None:
    wire.check_stamp(wire.Stamp("0.1", ("a", "b", "c")), plugin="0.1", hooks=("a", "b"))
