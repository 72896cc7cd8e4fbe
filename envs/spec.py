"""All that the rest of the system needs to know about one environment, in one record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envs.base import Observation, ParsedAction, PromptContext, TaskStart, TextEnv
from envs.options import Option, resolve_options
from envs.tags import format_response


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """One environment. The first five fields are needed; the others say more about it."""

    name: str
    description: str
    """One sentence a person reads in the dataset."""
    make: Callable[[], TextEnv]
    """Factory; importable (a class or a module-level function), since workers call it."""
    build_prompt: Callable[[PromptContext], str]
    project: Callable[[str, Sequence[str]], ParsedAction]
    """``(response text, admissible actions) -> ParsedAction``; pure, and never raises."""
    expert: Callable[[TextEnv], list[str]] | None = None
    """Actions from the current state to success. A stochastic environment may return only the next
    action, so callers ask again after each step and take the first. Empty: nothing left to do, or
    no way."""
    format_response: Callable[[str], str] = format_response
    """``action -> response`` that `project` reads back as that action; for demonstrations."""
    option_rules: Mapping[str, Option] = field(default_factory=dict)
    start_key: Callable[[int, Mapping[str, Any]], str] | None = None
    """``(seed, options) -> key``, equal when two seeds are the same task in disguise. None: seeds
    differ."""
    corpus: Callable[[], Iterable[str]] = tuple
    """Texts that a tokenizer for this environment should have seen (prompts and responses)."""
    task_list: Callable[[str, Mapping[str, Any]], Sequence[TaskStart]] | None = None
    """``(split, options) -> tasks`` for environments whose tasks are a fixed list (games, goals,
    questions), in a fixed order. None: every seed is a task. Raises ``ValueError`` for a split that
    is not in `splits`, and ``EnvDataError`` when the data are not there."""
    splits: tuple[str, ...] = ("train", "eval")
    """Splits that `task_list` knows. ``train`` and ``eval`` are required and share no task; others,
    such as ``eval_out``, are for ``env eval --split``."""
    check_data: Callable[[Mapping[str, Any]], object] | None = None
    """``(options) -> anything``: raises `envs.data.EnvDataError` unless the data that the options
    need are there. Quick, as it runs before every start."""
    sample_action: Callable[[random.Random, Observation], str] | None = None
    """``(generator, observation) -> a legal action``, where actions are not enumerated; for random
    agents and the checker. None: one of the admissible actions."""
    prompt_fields: Mapping[str, Callable[[PromptContext], str]] = field(default_factory=dict)
    """What this environment adds to the fields of a prompt file (`envs.prompt_template`)."""

    @property
    def default_options(self) -> dict[str, Any]:
        """A fresh dict with every option at its default."""
        return {name: option.default for name, option in self.option_rules.items()}

    def resolve_options(self, options: Mapping[str, Any] | None) -> dict[str, Any]:
        """Defaults filled in; raises ``ValueError`` naming option, rule and value."""
        return resolve_options(self.name, self.option_rules, options)

    def validate_options(self, options: Mapping[str, Any] | None) -> None:
        """Raise ``ValueError`` naming option, rule and value when ``options`` cannot work."""
        self.resolve_options(options)

    def random_action(self, rng: random.Random, observation: Observation) -> str:
        """A legal action drawn with ``rng``; empty when nobody says what is legal."""
        if self.sample_action is not None:
            return self.sample_action(rng, observation)
        return rng.choice(observation.admissible_actions or ("",))

    def starts(self, split: str, num: int, options: Mapping[str, Any]) -> list[TaskStart]:
        """Up to ``num`` tasks to try the environment on, without drawing task lists: the first of a
        fixed list, spread over it, or seeds from 0.
        """
        if self.task_list is None:
            return [TaskStart(name=str(seed), seed=seed, options=options) for seed in range(num)]
        listed = self.listed_starts(split, options)
        return listed[:: max(1, len(listed) // num)][:num] if num else []

    def listed_starts(self, split: str, options: Mapping[str, Any]) -> list[TaskStart]:
        """The fixed list of a split, each task with all its options. Options that name a task (a
        game, a goal) leave that one alone.

        Raises:
            ValueError: as of `task_list`, or no task of the split is the one that is named.
        """
        assert self.task_list is not None
        default = self.default_options
        named = {name: value for name, value in options.items() if value != default.get(name)}
        starts = [
            replace(start, options={**options, **start.options})
            for start in self.task_list(split, self.resolve_options(options))
            if all(start.options.get(name, value) == value for name, value in named.items())
        ]
        if named and not starts:
            raise ValueError(
                f"split {split!r} has no task with {named!r}. Correct the options, or take another "
                f"split of {', '.join(self.splits)}."
            )
        return starts

    def require_data(self, options: Mapping[str, Any] | None) -> None:
        """Raise `envs.data.EnvDataError` when data are needed and not there."""
        if self.check_data is not None:
            self.check_data(self.resolve_options(options))
