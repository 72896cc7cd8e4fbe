"""Sokoban's prompt: rules, past moves, the board at the end, and what lies around the player.

The past comes as one line of moves. Boards of the past would cost a hundred tokens each and say
little that the present one does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import PastStep, PromptContext
from envs.sokoban.env import ACTIONS, SokobanEnv
from envs.sokoban.expert import expert
from envs.sokoban.levels import MOVES
from envs.tags import format_response

TASK = (
    "Sokoban: push every box X onto a target O. You can push one box at a time and never pull.\n"
    "# wall, _ floor, P you, S you on a target, * box on a target.\n"
    "Answer with <think>...</think><action>...</action>."
)
_NAMES = {
    "#": "wall",
    "_": "floor",
    "O": "target",
    "X": "box",
    "*": "box on target",
}


def build_prompt(context: PromptContext) -> str:
    """The user message for one step, built from nothing but ``context``.

    Example: see ``tests/unit/envs/test_sokoban.py`` for a whole prompt.
    """
    parts = [TASK, f"Actions: {', '.join(context.observation.admissible_actions)}."]
    if context.history:
        moves = ", ".join(step.action or "no legal action" for step in context.history)
        parts.append(f"Past moves: {moves}")
    parts.append("Now:")
    parts.append(context.observation.text)
    parts.append(_around_line(context.observation.anchor))
    return "\n".join(parts)


def corpus() -> Iterable[str]:
    """Prompts and responses of expert episodes on boards of several sizes, for training a
    tokenizer.
    """
    for size in range(6, 11):
        for num_boxes in (1, 2):
            yield from _episode_texts(seed=size, size=size, num_boxes=num_boxes)


def _around_line(board: str) -> str:
    """What each move meets, e.g. ``Around: up wall, down floor, left box, right box (stuck)``."""
    rows = [line.split() for line in board.split("\n")]
    row, column = next(
        (at_row, at_column)
        for at_row, cells in enumerate(rows)
        for at_column, cell in enumerate(cells)
        if cell in "PS"
    )
    met = []
    for action in ACTIONS:
        down, right = MOVES[action]
        letter = rows[row + down][column + right]
        # The rim is wall, so a box always has a cell behind it.
        stuck = letter in "X*" and rows[row + 2 * down][column + 2 * right] in "#X*"
        met.append(f"{action} {_NAMES[letter]}{' (stuck)' if stuck else ''}")
    return f"Around: {', '.join(met)}"


def _episode_texts(*, seed: int, size: int, num_boxes: int) -> Iterable[str]:
    env = SokobanEnv()
    observation = env.reset(seed=seed, options={"size": size, "num_boxes": num_boxes})
    history: list[PastStep] = []
    plan = expert(env)
    for step_idx, action in enumerate(plan):
        yield build_prompt(
            PromptContext(
                observation=observation,
                step_idx=step_idx,
                max_steps=len(plan),
                history=history[-2:],
            )
        )
        yield from (format_response(legal) for legal in ACTIONS)
        history.append(PastStep(step_idx=step_idx, observation=observation.text, action=action))
        observation = env.step(action).observation
    env.close()
