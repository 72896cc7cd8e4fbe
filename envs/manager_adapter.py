"""``manager:package.module:factory``: a verl-agent style environment manager, unchanged.

Such a manager steps a batch of environments, builds the prompts and reads the responses itself::

    observations, infos = manager.reset(kwargs)            # lists with one entry per environment
    observations, rewards, dones, infos = manager.step(text_actions)
    manager.success_evaluator(total_infos=..., total_batch_list=...)

where ``observations`` has the lists ``text``, ``image`` and ``anchor``. Here it runs with one
environment, as one session of a group; groups are made by equal seeds. All that is to be written is
the factory, which builds the manager around one environment of that seed::

    def factory(seed: int, **kwargs) -> MyManager:
        return MyManager(build_my_envs(seed=seed, env_num=1, group_n=1), my_projection, config)

The manager's text is the whole prompt, so memory, prompt and projection of this package do nothing.
A blank response is refused here; all others reach the manager.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.base import Observation, ParsedAction, PromptContext, StepOutcome, TextEnv
from envs.options import Option, resolve_options
from envs.printable import printable
from envs.randomness import PrivateRandomState
from envs.registry import EnvLoadError
from envs.spec import EnvSpec
from envs.tags import FALLBACK_ACTION


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


OPTION_RULES: Mapping[str, Option] = {
    "kwargs": Option(default={}, rule="an object of arguments of the factory", allows=_is_mapping),
    "env_kwargs": Option(
        default={}, rule="an object, handed to the manager's reset", allows=_is_mapping
    ),
}


def build_prompt(context: PromptContext) -> str:
    """The manager's text, as it is."""
    return context.observation.text


def project(text: str, admissible: Sequence[str]) -> ParsedAction:
    """The whole response: the manager has a projection of its own."""
    if not text.strip():
        return ParsedAction(action=FALLBACK_ACTION, valid=False, reason="empty_response")
    return ParsedAction(action=text, valid=True)


def whole_response(action: str) -> str:
    """What a demonstration says: the response is the action."""
    return action


@dataclass(frozen=True)
class ManagerMaker:
    """``make`` of a spec: picklable, and equal for equal names."""

    name: str

    def __call__(self) -> ManagerEnv:
        """A session without a manager yet."""
        return ManagerEnv(self.name, find_factory(self.name))


class ManagerEnv(TextEnv):
    """A manager of one environment as one session. Each reset makes a manager, since they take
    their seed when they are made.
    """

    def __init__(self, name: str, factory: Any) -> None:
        self._name, self._factory = name, factory
        self._manager: Any = None
        self._random: PrivateRandomState | None = None
        self._shown: Observation | None = None
        self._infos: list[Mapping[str, Any]] = []

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Make a manager for the seed and reset it; raises ValueError for a bad option."""
        resolved = resolve_options(self._name, OPTION_RULES, options)
        self.close()
        self._random = PrivateRandomState(seed)
        env_kwargs = [dict(resolved["env_kwargs"])] if resolved["env_kwargs"] else None
        with self._random:
            self._manager = self._factory(seed=seed, **resolved["kwargs"])
            observations, _ = self._manager.reset(env_kwargs)
        self._infos = []
        self._shown = self._one(observations)
        return self._shown

    def step(self, action: str) -> StepOutcome:
        """Hand the response to the manager.

        Raises:
            RuntimeError: no episode is running.
        """
        if self._shown is None or self._random is None:
            raise RuntimeError(f"{self._name}: no episode is running; call reset() first.")
        if not action.strip():
            return StepOutcome(
                observation=self._shown,
                reward=0.0,
                terminated=False,
                truncated=False,
                action_valid=False,
                info={"success": False},
            )
        with self._random:
            observations, rewards, dones, infos = self._manager.step([action])
        info = dict(infos[0])
        self._infos.append(info)
        is_done = bool(dones[0])
        truncated = is_done and bool(info.get("TimeLimit.truncated", False))
        shown = self._one(observations)
        outcome = StepOutcome(
            observation=shown,
            reward=float(rewards[0]),
            terminated=is_done and not truncated,
            truncated=truncated,
            action_valid=bool(info.get("is_action_valid", True)),
            info={**info, "success": self._success() if is_done else False},
        )
        self._shown = None if is_done else shown
        return outcome

    def close(self) -> None:
        """Close the manager, where it can be closed; harmless when called twice."""
        if self._manager is not None and callable(getattr(self._manager, "close", None)):
            self._manager.close()
        self._manager, self._shown = None, None

    def _one(self, observations: Mapping[str, Any]) -> Observation:
        """The first entry of each list."""
        text = _first(observations.get("text"))
        if not isinstance(text, str):
            raise TypeError(
                f"{self._name}: observations['text'] must be a list of texts, got "
                f"{type(observations.get('text')).__name__}."
            )
        anchor = _first(observations.get("anchor"))
        return Observation(
            text=printable(text),
            anchor=text if anchor is None else anchor,
            image=_first(observations.get("image")),
        )

    def _success(self) -> bool:
        """The manager's own verdict on the episode."""
        steps = [{"active_masks": True} for _ in self._infos]
        verdict = self._manager.success_evaluator(
            total_infos=[self._infos], total_batch_list=[steps]
        )
        values = verdict.get("success_rate", ())
        return bool(len(values) and float(values[0]) > 0)


def _first(values: Any) -> Any:
    return None if values is None or len(values) == 0 else values[0]


def find_factory(name: str) -> Any:
    """The factory that ``manager:package.module:factory`` names; raises EnvLoadError."""
    module_name, _, function = name.partition(":")[2].rpartition(":")
    try:
        factory = getattr(importlib.import_module(module_name), function)
    except Exception as error:  # whatever the module of a stranger raises
        raise EnvLoadError(
            f"environment {name!r} cannot be loaded: {error}. Write "
            f"manager:package.module:factory, and put its folder on PYTHONPATH."
        ) from error
    if not callable(factory):
        raise EnvLoadError(
            f"environment {name!r} must name a function that makes a manager, got "
            f"{type(factory).__name__}."
        )
    return factory


def manager_spec(name: str) -> EnvSpec:
    """The spec of ``manager:package.module:factory``.

    Raises:
        EnvLoadError: the factory cannot be imported.
    """
    doc = inspect.getdoc(find_factory(name)) or name
    return EnvSpec(
        name=name,
        description=doc.split("\n", 1)[0],
        make=ManagerMaker(name),
        build_prompt=build_prompt,
        project=project,
        format_response=whole_response,
        option_rules=OPTION_RULES,
    )
