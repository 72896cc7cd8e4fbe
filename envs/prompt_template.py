"""Prompts as text with fields: what the environments here use, and what a prompt file holds.

A template is a text with fields in braces, and may have a second part for the step without a past::

    Task: {task}
    You have made {step_count} steps; the last {history_length}:
    {history}
    Now: {observation}
    Actions: {actions}
    === first step ===
    Task: {task}
    Now: {observation}
    Actions: {actions}

Fields of every environment: ``task``, ``observation``, ``actions`` (comma-separated), ``history``,
``history_length`` (steps shown), ``step`` (from 1), ``step_count`` (steps made), ``max_steps``,
``notes`` (of the memory module), ``image`` (where the image goes, for a policy that sees; nothing
for others). The names that verl-agent's templates use mean the same here:
``task_description``, ``current_observation``, ``admissible_actions`` or ``available_actions``,
``action_history`` or ``memory_context``, ``current_step``. Environments add their own
(`envs.spec.EnvSpec.prompt_fields`). A brace that is meant as such is doubled.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from envs.base import IMAGE_MARK, PastStep, PromptContext

if TYPE_CHECKING:
    from envs.spec import EnvSpec

FieldSource = Callable[[PromptContext], str]

FIRST_STEP_LINE = "=== first step ==="
"""The line before the part that is used when there is no past to show."""


def with_past(rules: str) -> str:
    """A template of some rules: with the past and the present below them, and without a past.

    Example:
        >>> with_past("Win.").splitlines()[-3:]
        ['Win.', 'Now:', '{observation}']
    """
    return f"""\
{rules}
You have made {{step_count}} steps. The last {{history_length}}:
{{history}}
Now:
{{observation}}
{FIRST_STEP_LINE}
{rules}
Now:
{{observation}}"""


class TemplateError(ValueError):
    """A template that cannot be filled in; the message names the place, the rule and the remedy."""


def history_text(context: PromptContext) -> str:
    """Past steps, two lines each; "none" when there are none.

    Example:
        >>> from envs.base import Observation
        >>> step = PastStep(step_idx=0, observation="A door.", action="open door")
        >>> print(history_text(PromptContext(observation=Observation(text="A hall.", anchor=1),
        ...     step_idx=1, max_steps=9, history=[step])))
        Step 1: A door.
        You did: open door
    """
    return "\n".join(map(_past_step_text, context.history)) or "none"


def _past_step_text(step: PastStep) -> str:
    return (
        f"Step {step.step_idx + 1}: {step.observation}\nYou did: {step.action or 'nothing legal'}"
    )


def _actions_text(context: PromptContext) -> str:
    return ", ".join(context.observation.admissible_actions) or "any text"


STANDARD_FIELDS: Mapping[str, FieldSource] = MappingProxyType(
    {
        "task": lambda context: context.observation.task,
        "observation": lambda context: context.observation.text,
        "actions": _actions_text,
        "history": history_text,
        "history_length": lambda context: str(len(context.history)),
        "step": lambda context: str(context.step_idx + 1),
        "step_count": lambda context: str(context.step_idx),
        "max_steps": lambda context: str(context.max_steps),
        "notes": lambda context: context.notes,
        "image": lambda context: "" if context.observation.image is None else IMAGE_MARK,
    }
)
_SAME_AS: Mapping[str, str] = {
    "task_description": "task",
    "current_observation": "observation",
    "admissible_actions": "actions",
    "available_actions": "actions",
    "action_history": "history",
    "memory_context": "history",
    "current_step": "step",
}


@dataclass(frozen=True)
class PromptTemplate:
    """A ``build_prompt``: call it with a `PromptContext`.

    Args:
        text: the template; see the top of this file.
        fields: more fields, or other sources for the standard ones.
        place: where the text comes from, for messages.

    Raises:
        TemplateError: an unknown field (with the nearest match), unbalanced braces, an empty part.

    Example:
        >>> from envs.base import Observation
        >>> template = PromptTemplate("Now: {observation}")
        >>> template(PromptContext(observation=Observation(text="ice", anchor=0), step_idx=0,
        ...     max_steps=5, history=[]))
        'Now: ice'
    """

    text: str
    fields: Mapping[str, FieldSource] = field(default_factory=dict)
    place: str = "a prompt template"

    def __post_init__(self) -> None:
        for part in self._parts():
            if not part.strip():
                raise TemplateError(f"{self.place} must not have an empty part. Write a prompt.")
            for name in self._names(part):
                self._source(name)

    def __call__(self, context: PromptContext) -> str:
        """The prompt of one step."""
        parts = self._parts()
        part = parts[0] if context.history else parts[-1]
        values = {name: self._source(name)(context) for name in self._names(part)}
        return part.format_map(values)

    def _parts(self) -> list[str]:
        parts: list[list[str]] = [[]]
        for line in self.text.strip("\n").split("\n"):
            if line.strip() == FIRST_STEP_LINE:
                parts.append([])
            else:
                parts[-1].append(line)
        if len(parts) > 2:
            raise TemplateError(
                f"{self.place} must have the line {FIRST_STEP_LINE!r} at most once, "
                f"got it {len(parts) - 1} times. Keep one."
            )
        return ["\n".join(lines).strip("\n") for lines in parts]

    def _names(self, part: str) -> list[str]:
        try:
            found = list(string.Formatter().parse(part))
        except ValueError as error:
            raise TemplateError(
                f"{self.place} must have balanced braces ({error}). Write {{{{ for a brace."
            ) from error
        names = []
        for _, name, form, conversion in found:
            if name is None:
                continue
            if form or conversion or not name.isidentifier():
                raise TemplateError(
                    f"{self.place}: a field must be a plain name, got {{{name}}} with a format or "
                    f"more than a name. Write {{{{ for a brace."
                )
            names.append(name)
        return names

    def _source(self, name: str) -> FieldSource:
        standard_name = _SAME_AS.get(name, name)
        for sources in (self.fields, STANDARD_FIELDS):
            for candidate in (name, standard_name):
                if candidate in sources:
                    return sources[candidate]
        known = list(dict.fromkeys([*STANDARD_FIELDS, *self.fields]))
        near = difflib.get_close_matches(name, [*known, *_SAME_AS], n=1)
        hint = f" Did you mean {{{near[0]}}}?" if near else ""
        raise TemplateError(
            f"{self.place}: no field is named {{{name}}}.{hint} Fields: {', '.join(known)}."
        )


def with_prompt_file(spec: EnvSpec, path: str | None) -> EnvSpec:
    """``spec`` with the prompt of a file (UTF-8); ``spec`` itself when ``path`` is None or empty.

    Raises:
        TemplateError: no such file, or a text that is no template for this environment.
    """
    if not path:
        return spec
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(
            f"prompt file {path} must be a readable text in UTF-8 ({error})."
        ) from error
    template = PromptTemplate(text, spec.prompt_fields, place=f"prompt file {path}")
    return replace(spec, build_prompt=template)
