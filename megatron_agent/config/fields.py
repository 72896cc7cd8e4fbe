"""Typed settings: dataclass fields with a rule each, and a reader that reports every broken one.

A settings class declares its rules beside its fields::

    @dataclass(frozen=True, kw_only=True, slots=True)
    class EnvSettings:
        max_steps: int = ruled(at_least=1, remedy="Use 12.")

and ``read_settings(EnvSettings, {"max_steps": 0}, "env", findings)`` records
``env.max_steps must be >= 1, got 0. Use 12.``
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from megatron_agent.config.findings import Findings, nearest_key

_TYPE_WORDS: Mapping[type, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a value must satisfy beyond its type. Bounds that are None do not bind."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    one_of: tuple[str, ...] = ()
    remedy: str = ""

    def broken_by(self, value: Any) -> str | None:
        """The rule in words when ``value`` breaks it, else None.

        Example:
            >>> Rule(above=0, at_most=1).broken_by(1.5)
            'must be in (0, 1]'
        """
        if self.one_of:
            return None if value in self.one_of else f"must be one of {', '.join(self.one_of)}"
        if not isinstance(value, int | float):
            return None
        holds = (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )
        # Written this way round so that NaN, which compares false with everything, breaks a bound.
        return None if holds else f"must be {self._range_in_words()}"

    def _range_in_words(self) -> str:
        if self.at_most is None:
            return f"> {self.above:g}" if self.above is not None else f">= {self.at_least:g}"
        if self.above is not None:
            return f"in ({self.above:g}, {self.at_most:g}]"
        if self.at_least is not None:
            return f"in [{self.at_least:g}, {self.at_most:g}]"
        return f"<= {self.at_most:g}"


def ruled(**rule: Any) -> Any:
    """A dataclass field with a `Rule`; the keyword arguments are those of `Rule`."""
    return dataclasses.field(metadata={"rule": Rule(**rule)})


def type_words(expected: Any) -> str:
    """An annotation in a user's words.

    Example:
        >>> type_words(int | None)
        'an integer or null'
    """
    if _is_union(expected):
        return " or ".join(type_words(member) for member in typing.get_args(expected))
    if expected is type(None):
        return "null"
    return _TYPE_WORDS.get(_plain_type(expected), str(expected))


def has_type(value: Any, expected: Any) -> bool:
    """Whether a plain configuration value fits an annotation; ints are numbers, bools are not.

    Example:
        >>> has_type(1, float), has_type(True, int), has_type(None, int | None)
        (True, False, True)
    """
    if expected is Any:
        return True
    if _is_union(expected):
        return any(has_type(value, member) for member in typing.get_args(expected))
    plain = _plain_type(expected)
    if plain is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if plain is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, plain)


def read_settings[SettingsT](
    settings_type: type[SettingsT], section: Any, prefix: str, findings: Findings
) -> SettingsT | None:
    """Read one section of the configuration into its dataclass.

    Args:
        settings_type: a dataclass whose fields are plain types or further settings dataclasses.
        section: the plain subtree found at ``prefix``.
        prefix: dotted key of the section, for messages.
        findings: receives unknown keys, missing keys, wrong types and broken rules.

    Returns:
        The settings, or None when anything in the section was reported.
    """
    if not isinstance(section, Mapping):
        findings.problem(prefix, "must be a mapping", section, f"Set the keys below {prefix}.")
        return None
    num_problems = len(findings.problems)
    hints = typing.get_type_hints(settings_type)
    fields = {field.name: field for field in dataclasses.fields(settings_type)}  # type: ignore[arg-type]
    for name in section:
        if name not in fields:
            _report_unknown(f"{prefix}.{name}", section[name], fields, prefix, findings)
    parsed: dict[str, Any] = {}
    for name, field in fields.items():
        key = f"{prefix}.{name}"
        if name not in section:
            findings.problem(key, "must be given", None, f"Set {key}=... .")
        elif dataclasses.is_dataclass(hints[name]):
            nested = typing.cast("type[Any]", hints[name])
            parsed[name] = read_settings(nested, section[name], key, findings)
        else:
            parsed[name] = _read_value(section[name], hints[name], key, field, findings)
    if len(findings.problems) > num_problems:
        return None
    return settings_type(**parsed)


def _read_value(
    value: Any, expected: Any, key: str, field: dataclasses.Field[Any], findings: Findings
) -> Any:
    rule: Rule = field.metadata.get("rule", Rule())
    if not has_type(value, expected):
        remedy = rule.remedy or f"Set {key} to {type_words(expected)}."
        findings.problem(key, f"must be {type_words(expected)}", value, remedy)
        return None
    broken = rule.broken_by(value)
    if broken:
        near = nearest_key(value, rule.one_of) if rule.one_of else None
        remedy = f"Did you mean {near!r}?" if near else rule.remedy or "Change the value."
        findings.problem(key, broken, value, remedy)
        return None
    # A float field keeps its promise: `gamma=1` arrives as 1.0.
    return float(value) if expected is float else value


def _report_unknown(
    key: str, value: Any, fields: Mapping[str, Any], prefix: str, findings: Findings
) -> None:
    near = nearest_key(key, [f"{prefix}.{name}" for name in fields])
    remedy = (
        f"Did you mean {near!r}?"
        if near
        else f"Known keys of {prefix}: {', '.join(sorted(fields))}."
    )
    findings.problem(key, "is not a known key", value, remedy)


def _is_union(expected: Any) -> bool:
    return isinstance(expected, types.UnionType) or typing.get_origin(expected) is typing.Union


def _plain_type(expected: Any) -> Any:
    origin = typing.get_origin(expected) or expected
    return {Mapping: dict, typing.Mapping: dict}.get(origin, origin)
