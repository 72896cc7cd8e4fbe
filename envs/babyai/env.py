"""BabyAI and other MiniGrid levels as text: turn, walk, carry and open things to fulfil a mission.

The reward is MiniGrid's: ``1 - 0.9 * steps / limit`` when the mission is fulfilled, otherwise 0.
The limit belongs to the level (64 steps in the smallest) and ends the episode as truncated; the
runner's own ``env.max_steps`` is usually lower.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import gymnasium
import minigrid  # noqa: F401 - its import registers the levels
from minigrid.utils.baby_ai_bot import BabyAIBot

from envs.babyai.view import describe_view
from envs.base import Observation
from envs.gym_text import GymTextEnv
from envs.options import Option

NAME = "babyai"
ACTIONS: tuple[str, ...] = (
    "turn left",
    "turn right",
    "go forward",
    "pick up",
    "drop",
    "toggle",
    "done",
)
"""In MiniGrid's order: the place in this tuple is MiniGrid's action number."""
_HEADINGS = ("east", "south", "west", "north")


def level_id(level: str) -> str:
    """Gymnasium's id of a level; BabyAI's need no prefix.

    Example:
        >>> level_id("GoToLocal-v0")
        'BabyAI-GoToLocal-v0'
    """
    return level if level in gymnasium.registry else f"BabyAI-{level}"


def _is_level(value: object) -> bool:
    return (
        isinstance(value, str)
        and value.partition("-")[0] not in ("", value)
        and level_id(value) in gymnasium.registry
        and level_id(value).startswith(("BabyAI-", "MiniGrid-"))
    )


OPTION_RULES: Mapping[str, Option] = {
    "level": Option(
        default="GoToLocal-v0",
        rule="a BabyAI level such as GoToLocal-v0, or an id such as MiniGrid-DoorKey-5x5-v0",
        allows=_is_level,
    ),
    "view": Option(
        default="words",
        rule="words (what is in sight, told) or grid (the whole map)",
        allows=lambda value: value in ("words", "grid"),
    ),
}


class BabyAIEnv(GymTextEnv):
    """One level. Actions act on the cell in front of the player.

    Example:
        >>> env = BabyAIEnv()
        >>> observation = env.reset(seed=0)
        >>> observation.task
        'go to the green ball'
    """

    NAME, ACTIONS, OPTION_RULES = NAME, ACTIONS, OPTION_RULES

    def __init__(self) -> None:
        super().__init__()
        self._bot: Any = None
        self._since_bot: list[int] = []
        self._advice: str | None = None

    def make_gym(self, options: Mapping[str, Any]) -> Any:
        """The level itself, without the wrappers that check every call."""
        return gymnasium.make(level_id(options["level"]), disable_env_checker=True).unwrapped

    def start(self, seed: int, options: Mapping[str, Any]) -> None:
        """Draw the level of this seed."""
        with contextlib.redirect_stdout(io.StringIO()):  # it prints every draw that it rejects
            self.gym.reset(seed=seed)
        self._bot, self._since_bot, self._advice = None, [], None

    def acted(self, action: str) -> None:
        """Note what the bot has not seen yet."""
        self._since_bot.append(ACTIONS.index(action))
        self._advice = None

    def admissible_actions(self) -> tuple[str, ...]:
        """All but ``done`` in BabyAI's levels, where it means nothing."""
        return ACTIONS[:-1] if hasattr(self.gym, "instrs") else ACTIONS

    def advice(self) -> str | None:
        """The next action of BabyAI's bot; None when it knows none or the episode is over."""
        if self.done or not hasattr(self.gym, "instrs"):
            return None
        if self._advice is None:
            self._advice = self._ask_bot()
        return self._advice

    def _ask_bot(self) -> str | None:
        # The bot plans on from its last advice and must be told what was done instead. When it
        # missed more than that, a new one looks at the world afresh.
        if self._bot is None or len(self._since_bot) > 1:
            self._bot, taken = BabyAIBot(self.gym), None
        else:
            taken = self.gym.actions(self._since_bot[-1]) if self._since_bot else None
        self._since_bot = []
        try:
            number = int(self._bot.replan(taken))
        except Exception:  # the bot gives up by whatever assertion fails first
            self._bot = None
            return None
        return ACTIONS[number] if ACTIONS[number] in self.admissible_actions() else None

    def observe(self) -> Observation:
        """What is in sight or the whole map, and what is carried."""
        carrying = self.gym.carrying
        load = f"{carrying.color} {carrying.type}" if carrying is not None else "nothing"
        grid = self.gym.pprint_grid()
        if self.options["view"] == "grid":
            lines = [grid, f"You face {_HEADINGS[self.gym.agent_dir]}."]
        else:
            lines = [describe_view(self.gym.gen_obs()["image"])]
        lines.append(f"You carry {load}.")
        # The map and the load are the state; a mission of several parts also has a progress.
        progress = _progress(getattr(self.gym, "instrs", None))
        return Observation(
            text="\n".join(lines),
            anchor=f"{grid}\ncarrying {load}\n{progress}".rstrip("\n"),
            admissible_actions=self.admissible_actions(),
            task=str(self.gym.mission),
        )


def _progress(instruction: Any) -> str:
    """Which parts of a mission are done, as letters."""
    if instruction is None or not hasattr(instruction, "instr_a"):
        return ""
    parts = [
        f"{name}:{getattr(instruction, f'{name}_done', False)}"
        f"({_progress(getattr(instruction, f'instr_{name}'))})"
        for name in ("a", "b")
    ]
    return " ".join(parts)
