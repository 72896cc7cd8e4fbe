"""From a response to a text, and from that to the action object that the server expects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from envs.tags import parse_think_action as project

__all__ = ["ActionForm", "form_of_schema", "is_template", "project"]

_READERS: Mapping[str, Callable[[str], Any]] = {
    "{action:int}": int,
    "{action:float}": float,
    "{action:json}": json.loads,
}
_PLACE = "{action}"
_READER_OF_TYPE: Mapping[str, str] = {
    "integer": "{action:int}",
    "number": "{action:float}",
    "array": "{action:json}",
    "object": "{action:json}",
}


class ActionForm:
    """How a text becomes an action.

    Args:
        template: an object with ``{action}`` where the text goes; ``{action:int}``,
            ``{action:float}`` and ``{action:json}``, alone in their place, read it first.
        commands: text to whole action. Where there are some, nothing else may be said.

    Example:
        >>> ActionForm({"move": "{action:int}", "speed": 1}).payload("3")
        {'move': 3, 'speed': 1}
    """

    def __init__(
        self,
        template: Mapping[str, Any],
        commands: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._template = template
        self.commands = dict(commands or {})

    def payload(self, text: str) -> Mapping[str, Any] | None:
        """The action; None when ``text`` cannot be one."""
        if self.commands:
            return self.commands.get(text)
        try:
            text.encode()  # half a surrogate pair cannot be sent
            filled: Mapping[str, Any] = _fill(self._template, text)
        except (ValueError, RecursionError):  # JSON of 100 kB may be nested too deeply
            return None
        return filled


def is_template(value: object) -> bool:
    """Whether ``value`` is an object that has a place for the action.

    Example:
        >>> is_template({"message": "{action}"}), is_template({"message": "left"})
        (True, False)
    """
    if not isinstance(value, dict):
        return False
    return any(place in json.dumps(value) for place in (_PLACE, *_READERS))


def form_of_schema(schema: Mapping[str, Any]) -> ActionForm:
    """The form of a server's own description of its actions, where that leaves no choice: one field
    that must be given. A field with a fixed set of values gives the commands.

    Args:
        schema: JSON schema of an action.

    Raises:
        ValueError: there is a choice; names the fields.

    Example:
        >>> form = form_of_schema({"properties": {"move": {"enum": ["left", "right"]}}})
        >>> form.commands
        {'left': {'move': 'left'}, 'right': {'move': 'right'}}
    """
    fields = {
        name: _resolved(rule, schema)
        for name, rule in schema.get("properties", {}).items()
        if name != "metadata"
    }
    needed = [name for name in schema.get("required", ()) if name in fields] or list(fields)
    if len(needed) != 1:
        raise ValueError(f"an action has the fields {', '.join(fields) or '(none)'}")
    (name,) = needed
    rule = fields[name]
    values = rule.get("enum", [])
    commands = {str(value): {name: value} for value in values}
    return ActionForm({name: _READER_OF_TYPE.get(str(rule.get("type")), _PLACE)}, commands)


def _resolved(rule: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rule, or the definition that it refers to."""
    name = str(rule.get("$ref", "")).removeprefix("#/$defs/")
    definition: Mapping[str, Any] = schema.get("$defs", {}).get(name, rule)
    return definition


def _fill(template: Any, text: str) -> Any:
    if isinstance(template, Mapping):
        return {name: _fill(value, text) for name, value in template.items()}
    if isinstance(template, list):
        return [_fill(value, text) for value in template]
    if not isinstance(template, str):
        return template
    reader = _READERS.get(template)
    return reader(text) if reader is not None else template.replace(_PLACE, text)
