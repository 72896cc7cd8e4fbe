"""Options of an environment: a default and a rule for each, checked in one place.

An environment declares ``{"size": Option(default=4, rule="an integer from 4 to 8", allows=...)}``;
whoever passes options gets one message with the option's name, its rule and the value found.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One option: plain JSON values only, so that options can live in a dataset row."""

    default: Any
    rule: str
    """What a value must be, to stand after "must be"."""
    allows: Callable[[Any], bool]


def one_of(names: Collection[str], *, default: str) -> Option:
    """An option that is one of some names.

    Example:
        >>> one_of(("train", "eval"), default="train").rule
        'one of train, eval'
    """
    return Option(
        default=default,
        rule=f"one of {', '.join(names)}",
        allows=lambda value: isinstance(value, str) and value in names,
    )


def is_int(value: object) -> bool:
    """Whether ``value`` is an integer and not a bool (``True`` is an ``int`` in Python)."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether ``value`` is an int or a float and not a bool."""
    return is_int(value) or isinstance(value, float)


def resolve_options(
    env_name: str, rules: Mapping[str, Option], options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Fill in defaults and check every value.

    Raises:
        ValueError: an unknown option (with the nearest match) or a value against its rule.

    Example:
        >>> rules = {"size": Option(default=4, rule="an integer from 4 to 8", allows=is_int)}
        >>> resolve_options("frozenlake", rules, {})
        {'size': 4}
    """
    given = dict(options or {})
    for name in given:
        if name not in rules:
            near = difflib.get_close_matches(str(name), rules, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"environment {env_name!r} has no option {name!r}.{hint} "
                f"Options: {', '.join(rules)}."
            )
    resolved = {name: given.get(name, option.default) for name, option in rules.items()}
    for name, option in rules.items():
        if not option.allows(resolved[name]):
            raise ValueError(
                f"option {name!r} of environment {env_name!r} must be {option.rule}, "
                f"got {resolved[name]!r}."
            )
    return resolved
