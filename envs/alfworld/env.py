"""ALFWorld as text: household tasks in the official games.

One game file is one start. The seed matters only when no game is named: then it picks one from a
split. The step limit is the episode runner's (``env.max_steps``; 50 in the published results).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envs.alfworld.games import NAME, SPLIT_FOLDERS, TASK_TYPES, game_path, task_type
from envs.alfworld.walkthrough import WalkthroughGuide
from envs.base import Observation, StepOutcome, TextEnv
from envs.data import DATA_OPTION
from envs.options import Option, is_number, one_of, resolve_options
from envs.randomness import PrivateRandomState

if TYPE_CHECKING:
    from envs.alfworld.engine import Game, Scene

NOTHING_HAPPENS = "Nothing happens."


def _is_game_name(value: object) -> bool:
    return isinstance(value, str) and (
        not value or (value.count("/") == 2 and ".." not in value and not value.startswith("/"))
    )


def _are_task_types(value: object) -> bool:
    return isinstance(value, list) and all(item in TASK_TYPES for item in value)


OPTION_RULES: Mapping[str, Option] = {
    "data_dir": DATA_OPTION,
    "split": one_of(SPLIT_FOLDERS, default="train"),
    "task_types": Option(
        default=[],
        rule=f"a list of {', '.join(TASK_TYPES)}; empty for all",
        allows=_are_task_types,
    ),
    "game": Option(
        default="",
        rule="a folder SPLIT/TASK/TRIAL below json_2.1.1, or empty to let the seed pick one",
        allows=_is_game_name,
    ),
    "anchor": Option(
        default="state",
        rule="'state' (what is where, and in which state) or 'observation' (the last text)",
        allows=lambda value: value in ("state", "observation"),
    ),
    "win_reward": Option(
        default=10.0,
        rule="a number above 0",
        allows=lambda value: is_number(value) and value > 0,
    ),
}


class AlfworldEnv(TextEnv):
    """Fulfil a household task: ``win_reward`` when it is done, otherwise 0.

    Example::

        env = AlfworldEnv()
        observation = env.reset(seed=0, options={"split": "eval"})
        observation.task                              # 'put some soapbottle on cabinet.'
        env.step("go to cabinet 1").observation.text  # 'You arrive at cabinet 1. ...'
    """

    def __init__(self) -> None:
        self._game: Game | None = None
        self._scene: Scene | None = None
        self._name = ""
        self._guide = WalkthroughGuide(())
        self._options: dict[str, Any] = {}
        self._done = True

    @property
    def guide(self) -> WalkthroughGuide:
        """What is left of the walkthrough, for the expert."""
        return self._guide

    @property
    def admissible_actions(self) -> tuple[str, ...]:
        """Legal commands; none when the episode is over."""
        return () if self._scene is None or self._done else self._scene.commands

    @property
    def done(self) -> bool:
        """Whether the task is fulfilled, or no episode was started."""
        return self._done

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start a game.

        Raises:
            ValueError: an option that cannot work, a game that is not there (`EnvDataError`), or a
                file that is no game.
        """
        # Here, as it takes a second and only workers need it. A library in it draws from the global
        # random state when it is imported.
        with PrivateRandomState(seed=0):
            from envs.alfworld.engine import Game

        self._options = resolve_options(NAME, OPTION_RULES, options)
        self._name, path = game_path(seed, self._options)
        if self._game is None or self._game.path != path:
            self.close()
            self._game = Game(path)
        self._scene = self._game.restart()
        self._guide = WalkthroughGuide(self._game.walkthrough)
        self._done = False
        return self._observe(self._scene.text)

    def step(self, action: str) -> StepOutcome:
        """Do something; an action that is not legal changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        if self._game is None or self._scene is None:
            raise RuntimeError("alfworld: no episode was started; call reset() first.")
        if self._done:
            raise RuntimeError("alfworld: the episode is over; call reset() before step().")
        action_valid = action in self._scene.commands
        if action_valid:
            self._scene = self._game.act(action)
            self._guide.note(action)
            self._done = self._scene.won
        return StepOutcome(
            observation=self._observe(self._scene.text if action_valid else NOTHING_HAPPENS),
            reward=float(self._options["win_reward"]) if self._done else 0.0,
            terminated=self._done,
            truncated=False,
            action_valid=action_valid,
            info={"success": self._done, "task_type": task_type(self._name), "game": self._name},
        )

    def close(self) -> None:
        """Unload the game; harmless when called twice."""
        if self._game is not None:
            self._game.close()
        self._game, self._scene, self._done = None, None, True

    def _observe(self, text: str) -> Observation:
        assert self._game is not None
        assert self._scene is not None
        by_state = self._options["anchor"] == "state"
        return Observation(
            text=text,
            # Not ``text``: a refused action leaves the anchor as it was.
            anchor=self._game.state_text() if by_state else self._scene.text,
            admissible_actions=self.admissible_actions,
            task=self._game.task,
        )
