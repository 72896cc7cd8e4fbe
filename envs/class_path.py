"""``package.module:Name``: an environment by the place of its code, without registering anything.

``Name`` may be an `EnvSpec` (all of it is used, under the path as its name), a subclass of
`TextEnv`, or a subclass of ``gymnasium.Env`` (then as ``gym:``, see `envs.gym_adapter`).

A `TextEnv` class may also carry ``OPTION_RULES`` (a mapping as in `envs.options`) and a method
``expert(self) -> list[str]``; its first docstring line describes the task. More than that is an
`EnvSpec`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from envs.base import PromptContext, TextEnv
from envs.prompt_template import PromptTemplate
from envs.registry import EnvLoadError
from envs.spec import EnvSpec
from envs.tags import parse_think_action


def class_path_spec(path: str) -> EnvSpec:
    """The spec of what lies at ``path``.

    Raises:
        EnvLoadError: the module cannot be imported, has no such name, or the name is something
            else.
    """
    found = _find(path)
    if isinstance(found, EnvSpec):
        return replace(found, name=path)
    if inspect.isclass(found) and issubclass(found, TextEnv):
        if inspect.isabstract(found):
            raise EnvLoadError(f"environment {path!r} must define reset and step.")
        return _text_env_spec(path, found)
    if _is_gym_class(found):
        from envs.gym_adapter import adapted_spec
        from envs.gym_makers import ClassGym

        return adapted_spec(path, ClassGym(path), _first_line(found))
    raise EnvLoadError(
        f"environment {path!r} must be an EnvSpec, a TextEnv class or a gymnasium.Env class, "
        f"got {type(found).__name__}."
    )


def _find(path: str) -> Any:
    module_name, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), name)
    except Exception as error:  # whatever the module of a stranger raises
        raise EnvLoadError(
            f"environment {path!r} cannot be loaded: {error}. Write package.module:Name, and "
            f"install the package or put its folder on PYTHONPATH."
        ) from error


def _is_gym_class(found: Any) -> bool:
    if not inspect.isclass(found):
        return False
    import gymnasium

    return issubclass(found, gymnasium.Env)


def _text_env_spec(path: str, cls: type[TextEnv]) -> EnvSpec:
    description = _first_line(cls)
    fields: Mapping[str, Callable[[PromptContext], str]] = {
        "task": lambda context: context.observation.task or description
    }
    from envs.gym_adapter import TEMPLATE

    expert = getattr(cls, "expert", None)
    return EnvSpec(
        name=path,
        description=description,
        make=cls,
        build_prompt=PromptTemplate(TEMPLATE, fields, place="envs/class_path.py"),
        project=parse_think_action,
        expert=expert if callable(expert) else None,
        option_rules=getattr(cls, "OPTION_RULES", {}),
        prompt_fields=fields,
    )


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or cls.__name__).split("\n", 1)[0]
