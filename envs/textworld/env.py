"""TextWorld as text: games that were generated before, each with a goal and points on the way.

One game file is one start. The seed matters only when no game is named: then it picks one from a
split. The reward of a step is the share of the game's points that it brings, so the return is 1
when the game is won. The step limit is the episode runner's (``env.max_steps``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envs.base import Observation, StepOutcome, TextEnv
from envs.data import DATA_OPTION
from envs.options import Option, one_of, resolve_options
from envs.randomness import PrivateRandomState
from envs.textworld.games import KINDS, NAME, SPLITS, game_path, kind_of

if TYPE_CHECKING:
    from envs.textworld.engine import Game, Scene


def _is_game_name(value: object) -> bool:
    return isinstance(value, str) and (
        not value or (value.partition("/")[0] in SPLITS and kind_of(value) in KINDS)
    )


OPTION_RULES: Mapping[str, Option] = {
    "data_dir": DATA_OPTION,
    "split": one_of(SPLITS, default="train"),
    "kinds": Option(
        default=[],
        rule=f"a list of {', '.join(KINDS)}; empty for all",
        allows=lambda value: isinstance(value, list) and all(kind in KINDS for kind in value),
    ),
    "game": Option(
        default="",
        rule="a game SPLIT/KIND-SEED, or empty to let the seed pick one",
        allows=_is_game_name,
    ),
}


class TextWorldEnv(TextEnv):
    r"""Play a game; it ends when it is won, or lost (a burnt dish).

    Example::

        env = TextWorldEnv()
        observation = env.reset(seed=0, options={"split": "eval"})
        observation.task                          # 'You are hungry! Let's cook a ...'
        env.step("go east").observation.text      # '-= Corridor =-\nYou arrive in ...'
    """

    def __init__(self) -> None:
        self._game: Game | None = None
        self._scene: Scene | None = None
        self._name = ""
        self._done = True

    @property
    def done(self) -> bool:
        """Whether the episode is over, or none was started."""
        return self._done

    @property
    def solution(self) -> tuple[str, ...]:
        """Commands that win from here; empty when there are none, or the episode is over."""
        return () if self._scene is None or self._done else self._scene.solution

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start a game.

        Raises:
            ValueError: an option that cannot work, a game that is not there (`EnvDataError`), or a
                file that is no game.
        """
        # Here, as it takes a second and only workers need it. Libraries in it draw from the global
        # random state.
        with PrivateRandomState(seed=0):
            from envs.textworld.engine import Game

            self._name, path = game_path(seed, resolve_options(NAME, OPTION_RULES, options))
            if self._game is None or self._game.path != path:
                self.close()
                self._game = Game(path)
            self._scene = self._game.restart()
        self._done = False
        return self._observe(self._scene)

    def step(self, action: str) -> StepOutcome:
        """Do something; an action that is not legal changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        scene, reward = self._scene, 0.0
        if self._game is None or scene is None:
            raise RuntimeError("textworld: no episode was started; call reset() first.")
        if self._done:
            raise RuntimeError("textworld: the episode is over; call reset() before step().")
        action_valid = action in scene.commands
        if action_valid:
            before, scene = scene.score, self._game.act(action)
            self._scene, self._done = scene, scene.won or scene.lost
            reward = scene.score - before
        return StepOutcome(
            observation=self._observe(scene),
            reward=reward,
            terminated=self._done,
            truncated=False,
            action_valid=action_valid,
            info={
                "success": scene.won,
                "score": scene.score,
                "task_type": kind_of(self._name),
                "game": self._name,
            },
        )

    def close(self) -> None:
        """Unload the game; harmless when called twice."""
        if self._game is not None:
            self._game.close()
        self._game, self._scene, self._done = None, None, True

    def _observe(self, scene: Scene) -> Observation:
        assert self._game is not None
        return Observation(
            text=scene.text,
            anchor=scene.state,
            admissible_actions=() if self._done else scene.commands,
            task=self._game.task,
        )
