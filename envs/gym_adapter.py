"""``gym:ID``: any Gymnasium environment with discrete or text actions, without code.

``gym:Taxi-v4`` is Gymnasium's Taxi; ``gym:my_package:MyEnv-v0`` imports ``my_package`` first, as
Gymnasium does. What the agent sees is the observation in words, before it the picture in letters
where the environment draws one (``ansi``). The anchor is the observation as it is.

What cannot be guessed is an option: names of the actions, arguments of the environment, what counts
as success.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from envs.base import Observation, PromptContext, StepOutcome, TextEnv
from envs.corpus import episode_texts
from envs.gym_makers import GymMaker, RegisteredGym, registered
from envs.gym_words import action_names, as_anchor, as_image, in_words, legal_actions
from envs.options import Option, resolve_options
from envs.printable import printable
from envs.prompt_template import PromptTemplate
from envs.randomness import PrivateRandomState
from envs.registry import EnvLoadError, EnvNotFoundError
from envs.spec import EnvSpec
from envs.tags import parse_think_action

_SUCCESS_RULES = ("auto", "last_reward", "terminated", "truncated")

OPTION_RULES: Mapping[str, Option] = {
    "kwargs": Option(
        default={},
        rule="an object of arguments of the environment",
        allows=lambda value: isinstance(value, Mapping),
    ),
    "actions": Option(
        default=[],
        rule="a list of different names, one for each action, or empty for the environment's own",
        allows=lambda value: (
            isinstance(value, list | tuple)
            and all(isinstance(name, str) and name.strip() for name in value)
            and len(set(value)) == len(value)
        ),
    ),
    "success": Option(
        default="auto",
        rule=f"one of {', '.join(_SUCCESS_RULES)}",
        allows=lambda value: value in _SUCCESS_RULES,
    ),
    "task": Option(
        default="",
        rule="a text that says what is to be done",
        allows=lambda value: isinstance(value, str),
    ),
}
"""``success``: the episode terminated with a reward above 0 (``last_reward``), terminated at all,
or lasted until it was truncated. ``auto``: it terminated with a reward above 0 and above all before
(a pole that falls is paid like one that stands), or its return reached Gymnasium's
``reward_threshold``. A ``success`` or ``is_success`` in Gymnasium's info goes before.
"""

TEMPLATE = """\
{task}
Answer with <think>...</think><action>...</action>.
Actions: {actions}.
Past steps:
{history}
Now:
{observation}
=== first step ===
{task}
Answer with <think>...</think><action>...</action>.
Actions: {actions}.
Now:
{observation}"""


@dataclass(frozen=True)
class AdapterFactory:
    """``make`` of a spec: picklable, and equal for equal environments."""

    name: str
    make_gym: GymMaker

    def __call__(self) -> GymAdapter:
        """A fresh adapter."""
        return GymAdapter(self.name, self.make_gym)


class GymAdapter(TextEnv):
    """One Gymnasium environment behind the interface of `envs.base`.

    Example:
        >>> from envs.registry import load_env
        >>> env = load_env("gym:CartPole-v1").make()
        >>> print(env.reset(seed=0).text)
        0.0137, -0.023, -0.0459, -0.0483
        >>> env.step("push left").reward
        1.0
    """

    def __init__(self, name: str, make_gym: GymMaker) -> None:
        self._name, self._make_gym = name, make_gym
        self._gym: Any = None
        self._made_with: Mapping[str, Any] = {}
        self._names: tuple[str, ...] = ()
        self._legal: tuple[str, ...] = ()
        self._random: PrivateRandomState | None = None
        self._shown: Observation | None = None
        self._rewards: list[float] = []

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start an episode; raises ValueError for an option that cannot work."""
        resolved = resolve_options(self._name, OPTION_RULES, options)
        self._random = PrivateRandomState(seed)
        with self._random:
            if self._gym is None or self._made_with != resolved:
                self._make(resolved)
            observation, info = self._gym.reset(seed=seed)
            self._shown = self._observe(observation, info)
        self._rewards = []
        return self._shown

    def step(self, action: str) -> StepOutcome:
        """Take one action.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        if self._shown is None or self._random is None:
            raise RuntimeError(f"{self._name}: no episode is running; call reset() first.")
        number = self._action(action)
        if number is None:
            return StepOutcome(
                observation=self._shown,
                reward=0.0,
                terminated=False,
                truncated=False,
                action_valid=False,
                info={"success": False},
            )
        with self._random:
            observation, reward, terminated, truncated, info = self._gym.step(number)
            shown = self._observe(observation, info)
        terminated, truncated = bool(terminated), bool(truncated) and not terminated
        self._shown = None if terminated or truncated else shown
        self._rewards.append(float(reward))
        return StepOutcome(
            observation=shown,
            reward=float(reward),
            terminated=terminated,
            truncated=truncated,
            info={"success": self._is_success(terminated, truncated, info)},
        )

    def close(self) -> None:
        """Free the Gymnasium environment; harmless when called twice."""
        if self._gym is not None:
            self._gym.close()
        self._gym, self._shown = None, None

    def _make(self, options: Mapping[str, Any]) -> None:
        self.close()
        kwargs = dict(options["kwargs"])
        if "ansi" in self._make_gym.render_modes:
            kwargs.setdefault("render_mode", "ansi")
        try:
            self._gym, self._made_with = self._make_gym(**kwargs), options
        except Exception as error:  # whatever the constructor of a stranger raises
            raise ValueError(
                f"option 'kwargs' of environment {self._name!r} must suit it, got "
                f"{options['kwargs']!r}: {error}"
            ) from error
        names = action_names(self._gym)
        given = tuple(options["actions"])
        if given and len(given) != len(names):
            raise ValueError(
                f"option 'actions' of environment {self._name!r} must have {len(names)} names, "
                f"got {len(given)}."
            )
        self._names = given or names

    def _action(self, action: str) -> Any:
        """What Gymnasium is given for ``action``; None when it is not legal."""
        space = self._gym.action_space
        if isinstance(space, gymnasium.spaces.Text):
            return action if space.contains(action) else None
        return int(space.start) + self._names.index(action) if action in self._legal else None

    def _observe(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        self._legal = legal_actions(self._names, info)
        words = in_words(observation)
        if self._gym.render_mode == "ansi":
            words = f"{printable(str(self._gym.render())).rstrip()}\n{words}"
        return Observation(
            text=words.strip("\n") or "(nothing)",
            anchor=as_anchor(observation),
            admissible_actions=self._legal,
            image=as_image(observation),
            task=str(self._made_with["task"]),
        )

    def _is_success(self, terminated: bool, truncated: bool, info: Mapping[str, Any]) -> bool:
        for key in ("success", "is_success"):
            if key in info:
                return bool(info[key])
        rule = self._made_with["success"]
        *before, reward = self._rewards
        if rule == "truncated":
            return truncated
        if rule == "auto":
            best = terminated and reward > max((0.0, *before))
            return best or self._reached_threshold(terminated, truncated)
        return terminated and (rule == "terminated" or reward > 0)

    def _reached_threshold(self, terminated: bool, truncated: bool) -> bool:
        threshold = getattr(self._gym.spec, "reward_threshold", None)
        if threshold is None:
            return False
        # Where every step costs something, an episode that was cut short has a high return too.
        counts = terminated or (truncated and threshold > 0)
        return bool(counts and sum(self._rewards) >= threshold)


def gym_spec(name: str) -> EnvSpec:
    """The spec of ``gym:ID``.

    Raises:
        EnvNotFoundError: no such id; the message has Gymnasium's hint.
        EnvLoadError: its module cannot be imported, or its actions are neither discrete nor text.
    """
    gym_id = name.partition(":")[2]
    try:
        registered(gym_id)
    except gymnasium.error.Error as error:
        raise EnvNotFoundError(
            f"no Gymnasium environment is named {gym_id!r}: {str(error).rstrip('.')}. "
            f"Write gym:ID, or gym:package:ID for one that a package registers on import."
        ) from error
    except Exception as error:  # whatever the module of a stranger raises
        raise EnvLoadError(f"environment {name!r} cannot be loaded: {error}.") from error
    return adapted_spec(name, RegisteredGym(gym_id), f"Gymnasium's {gym_id}.")


def adapted_spec(name: str, make_gym: GymMaker, description: str) -> EnvSpec:
    """The spec of a Gymnasium environment that ``make_gym`` makes.

    Raises:
        EnvLoadError: it cannot be made, or its actions are neither discrete nor text.
    """
    try:
        env = make_gym()
        action_names(env)
        env.close()
    except Exception as error:  # whatever the constructor of a stranger raises
        raise EnvLoadError(f"environment {name!r} cannot be made: {error}") from error
    make = AdapterFactory(name, make_gym)
    fields: Mapping[str, Callable[[PromptContext], str]] = {
        "task": lambda context: context.observation.task or description
    }
    build_prompt = PromptTemplate(TEMPLATE, fields, place="envs/gym_adapter.py")
    return EnvSpec(
        name=name,
        description=description,
        make=make,
        build_prompt=build_prompt,
        project=parse_think_action,
        option_rules=OPTION_RULES,
        corpus=functools.partial(_corpus, make, build_prompt),
        prompt_fields=fields,
    )


def _corpus(make: AdapterFactory, build_prompt: PromptTemplate) -> Iterable[str]:
    def first_action(env: TextEnv, observation: Observation) -> list[str]:
        return list(observation.admissible_actions[-1:])

    return episode_texts(make, build_prompt, first_action, [(seed, {}) for seed in range(8)])
