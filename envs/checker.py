"""The contract of an environment as a program: what is shipped must pass `check_env`.

Use it in a test of your environment::

    def test_my_env_keeps_the_contract():
        check_env(load_env("my_env"))

It raises `envs.playback.EnvContractError`, whose message says which promise was broken and how.
What it checks: equal seeds give equal episodes (on a used object, a fresh one, and in another
process with another hash seed), global random state and working folder are left alone, nonsense is
refused without an error, a reward or a change of state, closing twice works, texts can be printed,
anchors can be compared, every admissible action can be said and is accepted, the factory can be
pickled, prompts, parsing, options, corpus and expert do what their types say.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envs.base import TextEnv
from envs.data import EnvDataError
from envs.group_check import check_admissible, check_end, check_group, check_splits
from envs.nonsense_check import check_nonsense
from envs.playback import EnvContractError, check_sayable, check_text, ended, play, require
from envs.registry import EnvSpec
from envs.surroundings import left_alone

_EXPERT_MAX_STEPS = 2000
_OTHER_PROCESS_S = 120


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


Check = tuple[str, Callable[[], str | None]]
"""What is checked, and how. Raises EnvContractError, or returns why there was nothing to check."""


def contract_checks(
    spec: EnvSpec,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    options: Mapping[str, Any] | None = None,
    num_members: int = 2,
) -> Iterator[Check]:
    """The checks one by one, each with the words that say what it is about."""
    yield "factory, options, closing twice", lambda: check_spec(spec)
    resolved = spec.resolve_options(options)
    spec.require_data(resolved)
    yield "texts of the corpus", lambda: check_corpus(spec)
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
    check: Callable[[EnvSpec, int, Mapping[str, Any]], str | None],
    spec: EnvSpec,
    tasks: Sequence[tuple[int, Mapping[str, Any]]],
) -> str | None:
    reasons = [check(spec, seed, options) for seed, options in tasks]
    return next(filter(None, reasons), None)


def check_spec(spec: EnvSpec) -> None:
    """What can be seen without an episode: factory, options, closing."""
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
    env = spec.make()
    require(isinstance(env, TextEnv), f"{spec.name}: make() must give a TextEnv.")
    env.close()
    env.close()


def check_corpus(spec: EnvSpec) -> str | None:
    """A tokenizer can be trained on the corpus."""
    try:
        num_texts = 0
        for text in spec.corpus():
            check_text(text, f"{spec.name}: a corpus text")
            num_texts += 1
    except EnvDataError:
        # It takes no options, so it cannot know the folder that the other checks were given.
        return "it looks for its data where they are without options, and they are not there"
    return None if num_texts else "there are none"


def check_determinism(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> None:
    """Equal seeds give equal episodes, on used and fresh objects, alone or side by side."""
    with left_alone(spec.name):
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


def check_expert(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> str | None:
    """The expert's actions are legal and readable; a plan of several actions ends in success."""
    if spec.expert is None:
        return "no expert"
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
        check_sayable(spec, action, observation)
        outcome = env.step(action)
        require(outcome.action_valid, f"{spec.name}: the expert's {action!r} is not legal.")
        require(
            not (outcome.truncated and outcome.info["success"]),
            f"{spec.name}: an episode of the expert ends in success and is truncated; a goal that "
            f"is reached is terminated, truncated is what cuts an episode from outside.",
        )
        if ended(outcome):
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
    return None


def check_other_process(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> None:
    """A registered environment plays the same episode in a new interpreter."""
    env = spec.make()
    here = play(spec, env, seed, options)
    env.close()
    arguments = [spec.name, str(seed), json.dumps(dict(options))]
    try:
        there = subprocess.run(
            [sys.executable, "-m", "envs.playback", *arguments],
            env=os.environ | {"PYTHONHASHSEED": "4321", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_OTHER_PROCESS_S,
        )
    except subprocess.TimeoutExpired:
        raise EnvContractError(
            f"{spec.name}: playing in another process was not done after {_OTHER_PROCESS_S} s."
        ) from None
    require(
        there.returncode == 0 and bool(there.stdout),
        f"{spec.name}: playing in another process failed. An environment that is not registered is "
        f"checked as load_env('package.module:SPEC'). {there.stderr.strip()[-500:]}",
    )
    require(
        there.stdout == here,
        f"{spec.name}: seed {seed} plays differently in another process. Do not iterate over sets "
        f"or use hash() of texts, and seed everything from the seed.",
    )
