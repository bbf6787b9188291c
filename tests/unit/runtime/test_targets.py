"""Against the standard library: the mechanism does not care whose paths it checks."""

import pytest

from eti_rank.errors import HookError
from eti_rank.runtime.targets import Target, check_target, require_targets

GOOD = Target("good", "fnmatch.fnmatch", ("name", "pat"))
ATTRIBUTE = Target("good", "string.ascii_letters", None)


@pytest.mark.parametrize("target", [GOOD, ATTRIBUTE])
def test_expected_target_is_ok(target: Target) -> None:
    assert check_target(target).ok


@pytest.mark.parametrize(
    ("path", "parameters", "detail"),
    [
        ("no_such_module.thing", (), "not there: .*no_such_module"),
        ("fnmatch.gone", (), "not there: .*gone"),
        ("fnmatch.fnmatch", ("name",), r"takes \(name, pat\), want \(name\)"),
        ("fnmatch.fnmatch", ("pat", "name"), r"takes \(name, pat\), want \(pat, name\)"),
        ("string.ascii_letters", (), "is not a function"),
    ],
)
def test_moved_or_changed_target_is_named(path: str, parameters: tuple[str, ...], detail: str) -> None:
    bad = Target("bad", path, parameters)
    assert not check_target(bad).ok
    with pytest.raises(HookError, match=rf"{path} \(bad\): {detail}"):
        require_targets(["good", "bad"], [GOOD, bad])


def test_targets_of_other_hooks_do_not_matter() -> None:
    require_targets(["good"], [GOOD, Target("bad", "fnmatch.gone", ())])


def test_unknown_hook_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(HookError, match=r"unknown hooks typo; there are good"):
        require_targets(["typo"], [GOOD])
