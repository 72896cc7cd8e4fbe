"""ScienceWorld: thirty tasks of a science class, each in 10 to 1,386 variations.

The reward of a step is what it adds to the task's score, which goes to 1, or to -1 by a mistake
that ends the episode, such as focusing on the wrong thing. What is so from the beginning (0.08 or
so) is not paid. The step limit is the episode runner's (``env.max_steps``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envs.base import Observation, StepOutcome, TaskStart, TextEnv
from envs.gold_path import LazyGoldPath
from envs.jvm import find_java
from envs.options import Option, one_of, resolve_options
from envs.scienceworld.tasks import NAME, NUM_VARIATIONS, SPLITS, variations

if TYPE_CHECKING:
    from envs.scienceworld.engine import Lab, Scene

_HARMLESS = ("look around", "look at", "inventory", "task")
_MAX_CHARS = 200
"""Of an action; the engine compares it with everything that could be meant."""

OPTION_RULES: Mapping[str, Option] = {
    "task": one_of(NUM_VARIATIONS, default="find-living-thing"),
    "split": one_of(SPLITS, default="train"),
    "easy": Option(
        default=True,
        rule="true (open doors and containers, teleporting, no wiring, plants that water "
        "themselves) or false",
        allows=lambda value: isinstance(value, bool),
    ),
}


def task_list(split: str, options: Mapping[str, Any]) -> list[TaskStart]:
    """The official variations of a task in a split.

    Raises:
        ValueError: another split.
    """
    return [
        TaskStart(name=f"{options['task']}-{variation}", seed=place, options={"split": split})
        for place, variation in enumerate(variations(options["task"], split))
    ]


def check_data(options: Mapping[str, Any]) -> None:
    """Raise `envs.data.EnvDataError` unless there is a Java to run the house."""
    find_java()


class ScienceWorldEnv(TextEnv):
    """Do an experiment. Anything may be said; what the house does not understand is not valid.

    Example::

        env = ScienceWorldEnv()
        observation = env.reset(seed=0)
        observation.task                              # 'Your task is to find a(n) living thing ...'
        env.step("go to kitchen").observation.text    # 'You move to the kitchen.'
    """

    def __init__(self) -> None:
        self._lab: Lab | None = None
        self._made_with: tuple[str, int, str] = ("", 0, "")
        self._scene: Scene | None = None
        self._gold: LazyGoldPath | None = None
        self._task = ""
        self._done = True

    @property
    def done(self) -> bool:
        """Whether the episode is over, or none was started."""
        return self._done

    def gold_path(self) -> tuple[str, ...]:
        """Actions that win from here; empty when the task's own solution was left."""
        return () if self._done or self._gold is None else self._gold.rest

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start the variation that ``seed`` picks from the split.

        Raises:
            ValueError: an option that cannot work, or no Java (`EnvDataError`).
        """
        from envs.scienceworld.engine import solution, take_lab

        resolved = resolve_options(NAME, OPTION_RULES, options)
        listed = variations(resolved["task"], resolved["split"])
        wanted = resolved["task"], listed[seed % len(listed)], _simplification(resolved)
        if self._lab is None:
            self._lab = take_lab()
        self._lab.load(*wanted)
        self._made_with = wanted
        self._scene = self._lab.restart()
        self._task = self._lab.task()
        self._gold = LazyGoldPath(lambda: solution(*wanted), harmless=_HARMLESS)
        self._done = False
        return self._observe(self._scene)

    def step(self, action: str) -> StepOutcome:
        """Do something; what is not understood changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        before = self._scene
        if self._lab is None or before is None:
            raise RuntimeError("scienceworld: no episode was started; call reset() first.")
        if self._done:
            raise RuntimeError("scienceworld: the episode is over; call reset() before step().")
        scene = before
        can_be_said = action.isprintable() and bool(action.strip()) and len(action) <= _MAX_CHARS
        if can_be_said and not action.startswith("reset"):  # "reset task" would start anew
            scene = self._lab.act(action)
        action_valid = scene is not before and scene.understood
        if action_valid:
            self._scene, self._done = scene, scene.ended
            if self._gold is not None:
                self._gold.note(action)
        else:
            scene = before
        return StepOutcome(
            observation=self._observe(scene),
            reward=scene.score - before.score,
            terminated=self._done,
            truncated=False,
            action_valid=action_valid,
            info={
                "success": self._done and scene.score >= 1.0,
                "score": scene.score,
                "task_type": self._made_with[0],
                "variation": self._made_with[1],
            },
        )

    def close(self) -> None:
        """Leave the house to others; harmless when called twice."""
        if self._lab is not None:
            from envs.scienceworld.engine import give_back

            give_back(self._lab)
        self._lab, self._scene, self._gold, self._done = None, None, None, True

    def _observe(self, scene: Scene) -> Observation:
        return Observation(text=scene.text, anchor=scene.state, task=self._task)


def _simplification(options: Mapping[str, Any]) -> str:
    if not options["easy"]:
        return ""
    # Tasks about electricity cannot do without wires.
    is_about_wires = any(word in options["task"] for word in ("power-component", "conductivity"))
    parts = "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors"
    return ",".join(parts) if is_about_wires else "easy"
