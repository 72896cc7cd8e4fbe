"""The contract of an environment as a program: every registered one must pass `check_env`.

Use it in a test of your environment::

    def test_my_env_keeps_the_contract():
        check_env(load_env("my_env"))

It raises `envs.playback.EnvContractError`, whose message says which promise was broken and how.
What it checks: equal seeds give equal episodes (on a used object, a fresh one, and in another
process with another hash seed), global random state is left alone, nonsense is refused without an
error and without a change of state, closing twice works, texts can be printed, the factory can be
pickled, prompts, parsing, options, corpus and expert do what their types say.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envs.base import ParsedAction, TextEnv
from envs.group_check import check_admissible, check_end, check_group, check_splits
from envs.playback import (
    EnvContractError,
    anchor_key,
    check_observation,
    check_outcome,
    check_text,
    play,
    require,
)
from envs.registry import EnvSpec

NONSENSE: tuple[str, ...] = (
    "",
    " ",
    "\n\t",
    "no such action",
    "<action></action>",
    "\x00\x1b[31m",
    "\u202e\ud800 \U0001f9ca",
    "x" * 100_000,
)
_EXPERT_MAX_STEPS = 2000


def check_env(
    spec: EnvSpec, *, seeds: Sequence[int] = (0, 1, 2), options: Mapping[str, Any] | None = None
) -> None:
    """Check one environment; a few seconds, one of them for another process.

    Args:
        spec: the environment.
        seeds: where to start. An environment with a fixed list of tasks is tried on as many of
            those instead.
        options: of the environment; defaults for what is not given.

    Raises:
        EnvContractError: the first broken promise.
        EnvDataError: the environment needs data that are not there.
    """
    for _, check in contract_checks(spec, seeds=seeds, options=options):
        check()


Check = tuple[str, Callable[[], None]]


def contract_checks(
    spec: EnvSpec,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    options: Mapping[str, Any] | None = None,
    num_members: int = 2,
) -> Iterator[Check]:
    """The checks one by one, each with the words that say what it is about."""
    yield "factory, options, closing twice, corpus", lambda: check_spec(spec)
    resolved = spec.resolve_options(options)
    spec.require_data(resolved)
    yield "tasks of both splits differ", lambda: check_splits(spec, resolved)
    tasks: list[tuple[int, Mapping[str, Any]]] = [(seed, resolved) for seed in seeds]
    if spec.task_list is not None:
        tasks = [(task.seed, task.options) for task in spec.starts("train", len(seeds), resolved)]
    first = tasks[0]
    for what, check, chosen in (
        ("equal seeds, equal episodes; global random state untouched", check_determinism, tasks),
        ("nonsense is refused without an error", check_nonsense, tasks),
        ("the expert keeps its word", check_expert, tasks),
        ("admissible actions are accepted", check_admissible, [first]),
        (
            f"{num_members} members of a group start equal and stay independent",
            functools.partial(check_group, num_members=num_members),
            [first],
        ),
        ("a reset begins anew", check_end, [first]),
        ("the same episode in another process", check_other_process, [first]),
    ):
        yield what, functools.partial(_for_all, check, spec, chosen)


def _for_all(
    check: Callable[[EnvSpec, int, Mapping[str, Any]], None],
    spec: EnvSpec,
    tasks: Sequence[tuple[int, Mapping[str, Any]]],
) -> None:
    for seed, options in tasks:
        check(spec, seed, options)


def check_spec(spec: EnvSpec) -> None:
    """What can be seen without an episode: factory, options, corpus, closing."""
    try:
        # Equal is enough for a factory that is a record, such as the one of gym:ID.
        is_importable = pickle.loads(pickle.dumps(spec.make)) == spec.make  # noqa: S301 - our own bytes
    except (pickle.PicklingError, AttributeError, TypeError):
        is_importable = False
    require(
        is_importable,
        f"{spec.name}: make must be picklable by name; use a class or a module-level function.",
    )
    spec.validate_options(spec.default_options)
    try:
        spec.validate_options({"no such option": 1})
    except ValueError:
        pass
    else:
        raise EnvContractError(f"{spec.name}: validate_options must refuse an unknown option.")
    require(
        json.loads(json.dumps(spec.default_options)) == spec.default_options,
        f"{spec.name}: default options must be plain JSON values.",
    )
    for text in spec.corpus():
        check_text(text, f"{spec.name}: a corpus text")
    env = spec.make()
    require(isinstance(env, TextEnv), f"{spec.name}: make() must give a TextEnv.")
    env.close()
    env.close()


def check_determinism(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> None:
    """Equal seeds give equal episodes, on used and fresh objects, alone or side by side."""
    before = _global_random_state()
    env, other = spec.make(), spec.make()
    first = play(spec, env, seed, options)
    again = play(spec, env, seed, options)
    other.reset(seed=seed + 1, options=options)
    fresh_env = spec.make()
    fresh = play(spec, fresh_env, seed, options, neighbour=other)
    for made in (env, other, fresh_env):
        made.close()
        made.close()
    require(first == again, f"{spec.name}: a second episode of seed {seed} differs from the first.")
    require(
        first == fresh,
        f"{spec.name}: an episode of seed {seed} differs on a fresh object, or when another object "
        f"is used at the same time.",
    )
    require(
        _global_random_state() == before,
        f"{spec.name}: the global random state of Python or numpy changed; use a generator of your "
        f"own, or save and restore the state.",
    )


def check_nonsense(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> None:
    """Nonsense is refused, politely and without effect, by the parser and by the environment."""
    env = spec.make()
    start = env.reset(seed=seed, options=options)
    check_observation(spec, start)
    for text in NONSENSE:
        parsed = spec.project(text, start.admissible_actions)
        # Where actions are any text, nobody can say what is nonsense; blank text always is.
        is_nonsense = bool(start.admissible_actions) or not text.strip()
        require(
            isinstance(parsed, ParsedAction)
            and (parsed.valid or bool(parsed.reason))
            and not (parsed.valid and is_nonsense),
            f"{spec.name}: project({text[:20]!r}) must be invalid with a reason, got {parsed!r}.",
        )
        if not is_nonsense:
            check_outcome(spec, env.step(text))
            start = env.reset(seed=seed, options=options)
            continue
        outcome = env.step(text)
        check_outcome(spec, outcome)
        require(
            not outcome.action_valid and not outcome.terminated,
            f"{spec.name}: step({text[:20]!r}) must have action_valid=False and go on.",
        )
        require(
            anchor_key(outcome.observation.anchor) == anchor_key(start.anchor),
            f"{spec.name}: a refused action must leave the anchor as it was. A move counter or an "
            f"echo of the action does not belong into an anchor.",
        )
    env.close()


def check_expert(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> None:
    """The expert's actions are legal and readable; a plan of several actions ends in success."""
    if spec.expert is None:
        return
    env = spec.make()
    observation = env.reset(seed=seed, options=options)
    plan = spec.expert(env)
    is_whole_plan = len(plan) > 1
    for _ in range(_EXPERT_MAX_STEPS):
        plan = plan or spec.expert(env)
        if not plan:
            raise EnvContractError(
                f"{spec.name}: the expert gave up on seed {seed} before the end."
            )
        action, *plan = plan
        parsed = spec.project(spec.format_response(action), observation.admissible_actions)
        require(
            parsed.valid and parsed.action == action,
            f"{spec.name}: project must read format_response({action!r}) back, got {parsed!r}.",
        )
        outcome = env.step(action)
        require(outcome.action_valid, f"{spec.name}: the expert's {action!r} is not legal.")
        if outcome.terminated:
            break
        observation = outcome.observation
    else:
        raise EnvContractError(
            f"{spec.name}: the expert needs over {_EXPERT_MAX_STEPS} steps on seed {seed}."
        )
    require(
        outcome.info["success"] or not is_whole_plan,
        f"{spec.name}: the expert's plan for seed {seed} does not end in success.",
    )
    require(spec.expert(env) == [], f"{spec.name}: after the end the expert must have no action.")
    env.close()


def check_other_process(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> None:
    """A registered environment plays the same episode in a new interpreter."""
    env = spec.make()
    here = play(spec, env, seed, options)
    env.close()
    there = subprocess.run(
        [sys.executable, "-m", "envs.playback", spec.name, str(seed), json.dumps(dict(options))],
        env=os.environ | {"PYTHONHASHSEED": "4321", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    require(
        there.returncode == 0,
        f"{spec.name}: playing in another process failed. An environment that is not registered is "
        f"checked as load_env('package.module:SPEC'). {there.stderr.strip()[-500:]}",
    )
    require(
        there.stdout.strip() == here,
        f"{spec.name}: seed {seed} plays differently in another process. Do not iterate over sets "
        f"or use hash() of texts, and seed everything from the seed.",
    )


def _global_random_state() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, bytes(np.asarray(keys).data), tuple(rest)
