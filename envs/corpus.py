"""Prompts and responses of short episodes: what a tokenizer for an environment should have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from envs.base import Observation, PastStep, PromptContext, TextEnv
from envs.tags import format_response


def episode_texts(
    make: Callable[[], TextEnv],
    build_prompt: Callable[[PromptContext], str],
    choose: Callable[[TextEnv, Observation], list[str]],
    starts: Iterable[tuple[int, Mapping[str, Any]]],
    *,
    max_steps: int = 10,
    to_response: Callable[[str], str] = format_response,
) -> Iterator[str]:
    """The prompts of an episode from each start, and a response for every action seen on the way.

    Args:
        make: factory of the environment.
        build_prompt: its prompt, shown with the last two steps.
        choose: plan from here, of which the first action is taken; empty to stop.
        starts: ``(seed, options)`` of each episode.
        max_steps: longest episode.
        to_response: writes an action as a response.
    """
    env = make()
    said: dict[str, None] = {}
    for seed, options in starts:
        observation = env.reset(seed=seed, options=options)
        history: list[PastStep] = []
        for step_idx in range(max_steps):
            plan = choose(env, observation)
            if not plan:
                break
            yield build_prompt(
                PromptContext(
                    observation=observation,
                    step_idx=step_idx,
                    max_steps=max_steps,
                    history=history[-2:],
                )
            )
            said.update(dict.fromkeys((*observation.admissible_actions, plan[0])))
            past = PastStep(step_idx=step_idx, observation=observation.text, action=plan[0])
            history.append(past)
            outcome = env.step(plan[0])
            observation = outcome.observation
            if outcome.terminated or outcome.truncated:
                break
    env.close()
    yield from map(to_response, said)
