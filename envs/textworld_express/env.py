"""TextWorldExpress: seven kinds of small text games, drawn by seed, a thousand starts a split.

The reward of a step is what it adds to the game's score (0 to 1), so the return is the final score.
The step limit is the episode runner's (``env.max_steps``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envs.base import Observation, StepOutcome, TaskStart, TextEnv
from envs.gold_path import LazyGoldPath
from envs.jvm import find_java
from envs.options import Option, is_int, one_of, resolve_options

if TYPE_CHECKING:
    from envs.textworld_express.engine import Game, Scene

NAME = "textworld_express"
GAMES = (
    "cookingworld",
    "twc",
    "coin",
    "mapreader",
    "arithmetic",
    "simonsays",
    "peckingorder",
)
"""All but ``sorting``: its games share objects inside the Java machine, so that what one session
takes is gone for the others."""
FOLDS: Mapping[str, tuple[str, int]] = {
    "train": ("train", 0),
    "eval": ("dev", 10_000),
    "test": ("test", 20_000),
}
"""Our split to TextWorldExpress's fold and its first seed. Folds also differ in their objects."""
_NUM_SEEDS = 1000
_HARMLESS = ("look around", "inventory", "examine ", "read ", "task")

OPTION_RULES: Mapping[str, Option] = {
    "game": one_of(GAMES, default="cookingworld"),
    "split": one_of(FOLDS, default="train"),
    "params": Option(
        default={},
        rule="an object of whole numbers, such as {numLocations: 5}, or empty",
        allows=lambda value: isinstance(value, dict) and all(map(is_int, value.values())),
    ),
}


def task_list(split: str, options: Mapping[str, Any]) -> list[TaskStart]:
    """The thousand official starts of a split.

    Raises:
        ValueError: another split.
    """
    if split not in FOLDS:
        raise ValueError(f"textworld_express has the splits {', '.join(FOLDS)}, got {split!r}.")
    _, first = FOLDS[split]
    return [
        TaskStart(name=f"{options['game']}-{seed}", seed=seed, options={"split": split})
        for seed in range(first, first + _NUM_SEEDS)
    ]


def check_data(options: Mapping[str, Any]) -> None:
    """Raise `envs.data.EnvDataError` unless there is a Java to run the games."""
    find_java()


class TextWorldExpressEnv(TextEnv):
    """Play a game; it ends when it is won, or lost by a mistake.

    Example::

        env = TextWorldExpressEnv()
        observation = env.reset(seed=3, options={"game": "coin"})
        observation.task                              # 'Your task is to search the environment ...'
        env.step("take coin").info["success"]         # True
    """

    def __init__(self) -> None:
        self._game: Game | None = None
        self._scene: Scene | None = None
        self._gold: LazyGoldPath | None = None
        self._task = ""
        self._options: Mapping[str, Any] = {}
        self._done = True

    @property
    def done(self) -> bool:
        """Whether the episode is over, or none was started."""
        return self._done

    def gold_path(self) -> tuple[str, ...]:
        """Actions that win from here; empty when the game's own solution was left."""
        return () if self._done or self._gold is None else self._gold.rest

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Draw the game of ``seed`` and begin it.

        Raises:
            ValueError: an option that cannot work, or no Java (`EnvDataError`).
        """
        from envs.textworld_express.engine import Game

        resolved = resolve_options(NAME, OPTION_RULES, options)
        fold, _ = FOLDS[resolved["split"]]

        def new_game() -> Game:
            return Game(resolved["game"], resolved["params"])

        # A new object each time: the old one may have been in a machine that died.
        self._game, self._options = new_game(), resolved
        self._scene = self._game.start(seed, fold)
        self._task = self._game.task()
        self._gold = LazyGoldPath(lambda: new_game().gold_path(seed, fold), harmless=_HARMLESS)
        self._done = False
        return self._observe(self._scene)

    def step(self, action: str) -> StepOutcome:
        """Do something; an action that is not legal changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        scene, reward = self._scene, 0.0
        if self._game is None or scene is None:
            raise RuntimeError("textworld_express: no episode was started; call reset() first.")
        if self._done:
            raise RuntimeError(
                "textworld_express: the episode is over; call reset() before step()."
            )
        action_valid = action in scene.actions
        if action_valid:
            before, scene = scene.score, self._game.act(action)
            self._scene, self._done = scene, scene.won or scene.lost
            reward = scene.score - before
            if self._gold is not None:
                self._gold.note(action)
        return StepOutcome(
            observation=self._observe(scene),
            reward=reward,
            terminated=self._done,
            truncated=False,
            action_valid=action_valid,
            info={"success": scene.won, "score": scene.score, "task_type": self._options["game"]},
        )

    def close(self) -> None:
        """Forget the game; harmless when called twice. The Java machine stays for others."""
        self._game, self._scene, self._gold, self._done = None, None, None, True

    def _observe(self, scene: Scene) -> Observation:
        return Observation(
            text=scene.text,
            anchor=scene.state,
            admissible_actions=() if self._done else scene.actions,
            task=self._task,
        )
