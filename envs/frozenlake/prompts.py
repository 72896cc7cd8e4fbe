"""FrozenLake's prompt: short enough for a model of a million parameters.

The current board and the player's place stand at the end, next to where the response begins; the
past comes as one line a step (place and action), since the board itself does not change. A last
line names what lies around the player: to find that on the board is hard for so small a model, and
it would learn to walk blindly first.
"""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import PastStep, PromptContext
from envs.frozenlake.env import ACTIONS, FrozenLakeEnv
from envs.frozenlake.expert import MOVES, expert
from envs.tags import format_response

TASK = (
    "Cross the frozen lake: move the player P over ice F to the goal G. A hole H ends the game.\n"
    "Answer with <think>...</think><action>...</action>."
)


def build_prompt(context: PromptContext) -> str:
    """The user message for one step, built from nothing but ``context``.

    Example: see ``tests/unit/envs/test_frozenlake.py`` for a whole prompt.
    """
    parts = [TASK, f"Actions: {', '.join(context.observation.admissible_actions)}."]
    if context.history:
        parts.append("Past steps:")
        parts.extend(_past_line(step) for step in context.history)
    parts.append("Now:")
    parts.append(context.observation.text)
    parts.append(_around_line(context.observation.anchor))
    return "\n".join(parts)


def _around_line(board: str) -> str:
    """What each move leads to, e.g. ``Around: left edge, down H, right F, up edge``."""
    rows = [line.split() for line in board.split("\n")]
    here = next(
        (row, column)
        for row, cells in enumerate(rows)
        for column, cell in enumerate(cells)
        if cell == "P"
    )
    neighbours = []
    for action in ACTIONS:
        row, column = here[0] + MOVES[action][0], here[1] + MOVES[action][1]
        on_board = 0 <= row < len(rows) and 0 <= column < len(rows[row])
        neighbours.append(f"{action} {rows[row][column] if on_board else 'edge'}")
    return f"Around: {', '.join(neighbours)}"


def corpus() -> Iterable[str]:
    """Prompts and responses of expert episodes on a few maps of every size, for training a
    tokenizer.
    """
    for size in range(4, 9):
        for is_slippery in (False, True):
            yield from _episode_texts(seed=size, size=size, is_slippery=is_slippery)


def _past_line(step: PastStep) -> str:
    place = step.observation.rsplit("\n", 1)[-1].removeprefix("Player: ")
    return f"{place}: {step.action or 'no legal action'}"


def _episode_texts(
    *, seed: int, size: int, is_slippery: bool, max_steps: int = 20
) -> Iterable[str]:
    env = FrozenLakeEnv()
    observation = env.reset(seed=seed, options={"size": size, "is_slippery": is_slippery})
    history: list[PastStep] = []
    for step_idx in range(max_steps):
        plan = expert(env)
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
        yield from (format_response(action) for action in ACTIONS)
        history.append(PastStep(step_idx=step_idx, observation=observation.text, action=plan[0]))
        observation = env.step(plan[0]).observation
    env.close()
