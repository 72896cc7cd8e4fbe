"""Options of environments."""

from __future__ import annotations

from typing import Any

import pytest

from envs.registry import load_env

pytestmark = pytest.mark.unit


def test_missing_options_take_their_defaults():
    spec = load_env("frozenlake")
    assert spec.default_options == {"size": 4, "is_slippery": False, "p": 0.8}
    assert spec.resolve_options({"size": 8}) == {"size": 8, "is_slippery": False, "p": 0.8}
    assert spec.resolve_options(None) == spec.default_options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, r"option 'size' of environment 'frozenlake' must be an integer from 4 to 8"),
        ({"size": 9}, r"got 9\."),
        ({"size": 4.0}, r"got 4\.0\."),
        ({"size": True}, r"got True\."),
        ({"size": "4"}, r"got '4'\."),
        ({"is_slippery": 1}, r"option 'is_slippery' .* must be true or false, got 1\."),
        ({"p": 0.1}, r"option 'p' .* must be a number from 0.5 to 1"),
        ({"p": float("nan")}, r"got nan\."),
        ({"p": None}, r"got None\."),
        ({"sise": 4}, r"no option 'sise'\. Did you mean 'size'\? Options: size, is_slippery, p\."),
        ({"x" * 9: 4}, r"no option 'xxxxxxxxx'\. Options: "),
    ],
)
def test_a_bad_option_names_option_rule_and_value(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        load_env("frozenlake").validate_options(options)
