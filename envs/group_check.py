"""More of the contract of `envs.checker`: groups, tasks, legal actions, the end of an episode."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from envs.base import Observation, TextEnv
from envs.playback import (
    EnvContractError,
    anchor_key,
    any_action,
    check_observation,
    check_outcome,
    ended,
    require,
)
from envs.spec import EnvSpec

_MAX_STEPS = 30
_MAX_ACTIONS = 12
"""Admissible actions tried: each takes a reset, which may take seconds."""


def check_splits(spec: EnvSpec, options: Mapping[str, Any]) -> str | None:
    """Training and evaluation share no task, and names within a list are unique."""
    if spec.task_list is None:
        return "its tasks are seeds, and both splits draw from ranges of their own"
    tasks = {}
    for split in ("train", "eval"):
        listed = spec.task_list(split, spec.resolve_options(options))
        require(bool(listed), f"{spec.name}: the list of split {split!r} must not be empty.")
        names = [start.name for start in listed]
        require(
            len(set(names)) == len(names),
            f"{spec.name}: task names of split {split!r} must be unique.",
        )
        tasks[split] = {(start.seed, repr(sorted(start.options.items()))) for start in listed}
    shared = tasks["train"] & tasks["eval"]
    require(
        not shared,
        f"{spec.name}: train and eval must share no task, both have {next(iter(shared), None)}.",
    )
    try:
        spec.task_list("no such split", spec.resolve_options(options))
    except ValueError:
        return None
    raise EnvContractError(
        f"{spec.name}: task_list must refuse an unknown split with a ValueError."
    )


def check_admissible(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> str | None:
    """Actions that the first observation calls admissible are accepted."""
    env = spec.make()
    start = env.reset(seed=seed, options=options)
    actions = start.admissible_actions
    for action in actions[:: max(1, len(actions) // _MAX_ACTIONS)]:
        start = env.reset(seed=seed, options=options)
        outcome = env.step(action)
        check_outcome(spec, outcome)
        require(
            outcome.action_valid,
            f"{spec.name}: {action!r} is admissible at the start of seed {seed}, and step() calls "
            f"it invalid.",
        )
    env.close()
    return None if actions else "it lists none"


def check_group(
    spec: EnvSpec, seed: int, options: Mapping[str, Any], *, num_members: int = 2
) -> None:
    """Members of a group start equal, and what one does never changes what another sees."""
    members = [spec.make() for _ in range(num_members)]
    starts = [_fingerprint(env.reset(seed=seed, options=options)) for env in members]
    require(
        len(set(starts)) == 1,
        f"{spec.name}: members of a group must start equal; seed {seed} gives "
        f"{len(set(starts))} different starts in {num_members} resets.",
    )
    together = _play_in_turns(spec, members, seed, options)
    alone = _play_in_turns(spec, members[-1:], seed, options, first_member=num_members - 1)
    require(
        together[-1] == alone[-1],
        f"{spec.name}: an episode of seed {seed} differs when other members of its group play at "
        f"the same time. Keep all state in the object.",
    )
    for env in members:
        env.close()


def check_end(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> None:
    """After the end, or in the middle, a reset begins anew."""
    env = spec.make()
    start = env.reset(seed=seed, options=options)
    rng, observation, is_over = random.Random(seed), start, False
    for _ in range(_MAX_STEPS * 10):
        plan = spec.expert(env) if spec.expert is not None else []
        outcome = env.step(plan[0] if plan else any_action(spec, rng, observation))
        observation = outcome.observation
        is_over = ended(outcome)
        if is_over:
            break
    again = env.reset(seed=seed, options=options)
    require(
        _fingerprint(again) == _fingerprint(start),
        f"{spec.name}: a reset after {'the end' if is_over else 'a part'} of an episode must begin "
        f"anew, seed {seed} starts differently.",
    )
    env.close()


def _play_in_turns(
    spec: EnvSpec,
    members: list[TextEnv],
    seed: int,
    options: Mapping[str, Any],
    first_member: int = 0,
) -> list[list[str]]:
    """What each member saw when all take random actions in turns; every member has its own."""
    seen: list[list[str]] = []
    now: list[Observation | None] = []
    for env in members:
        now.append(env.reset(seed=seed, options=options))
        seen.append([])
    generators = [random.Random(first_member + number) for number in range(len(members))]
    for _ in range(_MAX_STEPS):
        for number, env in enumerate(members):
            observation = now[number]
            if observation is None:
                continue
            check_observation(spec, observation)
            outcome = env.step(any_action(spec, generators[number], observation))
            check_outcome(spec, outcome)
            seen[number].append(f"{_fingerprint(outcome.observation)} {outcome.reward!r}")
            now[number] = None if ended(outcome) else outcome.observation
    return seen


def _fingerprint(observation: Observation) -> str:
    return repr((observation.text, anchor_key(observation.anchor), observation.admissible_actions))
