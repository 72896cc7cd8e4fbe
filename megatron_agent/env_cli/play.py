"""``env play``: a person acts in the terminal and sees what an agent would see."""

from __future__ import annotations

from collections.abc import Callable

from envs.base import Observation, TextEnv
from envs.spec import EnvSpec
from megatron_agent.errors import EnvError
from megatron_agent.task_rows import EnvTask

HELP = "Type an action or its number; ? shows the expert's advice, quit ends."


def play(
    spec: EnvSpec, task: EnvTask, *, ask: Callable[[str], str], say: Callable[[str], None]
) -> float:
    """One episode.

    Args:
        spec: the environment.
        task: where to start.
        ask: shows a prompt and returns a line; raises EOFError at the end of the input.
        say: shows a text.

    Returns:
        The sum of rewards.

    Raises:
        EnvError: the environment refuses the task's options.
    """
    env = spec.make()
    try:
        return _play(spec, env, task, ask, say)
    finally:
        env.close()


def _play(
    spec: EnvSpec,
    env: TextEnv,
    task: EnvTask,
    ask: Callable[[str], str],
    say: Callable[[str], None],
) -> float:
    try:
        observation = env.reset(seed=task.seed, options=task.options)
    except ValueError as error:  # of an option that cannot work; all else is the environment's bug
        raise EnvError(f"environment {spec.name!r} cannot start: {error}") from error
    total, num_steps = 0.0, 0
    say(f"{spec.description} {HELP}")
    while True:
        _show(observation, say)
        try:
            said = ask("> ").strip()
        except EOFError:
            said = "quit"
        if said == "quit":
            say(f"You left after {num_steps} steps with a return of {total:g}.")
            return total
        if said == "?":
            plan = spec.expert(env) if spec.expert is not None else []
            say(f"The expert would say: {plan[0]}" if plan else "No expert knows what to do.")
            continue
        outcome = env.step(_action(said, observation))
        observation = outcome.observation
        total, num_steps = total + outcome.reward, num_steps + 1
        if not outcome.action_valid:
            say("That is not legal here.")
        elif outcome.reward:
            say(f"Reward {outcome.reward:g}.")
        if outcome.terminated or outcome.truncated:
            say(observation.text)
            verdict = "You did it" if outcome.info.get("success") else "It is over"
            say(f"{verdict} after {num_steps} steps with a return of {total:g}.")
            return total


def _show(observation: Observation, say: Callable[[str], None]) -> None:
    if observation.task:
        say(f"\nTask: {observation.task}")
    say(observation.text)
    actions = observation.admissible_actions
    if actions:
        say("  ".join(f"{number} {action}" for number, action in enumerate(actions, start=1)))


def _action(said: str, observation: Observation) -> str:
    """A number stands for an admissible action, unless it is one itself."""
    actions = observation.admissible_actions
    if said in actions or not said.isascii() or not said.isdigit():
        return said
    number = int(said[:9])
    return actions[number - 1] if 1 <= number <= len(actions) else said
