"""What the environments on top of one Gymnasium class share: the life of an episode.

A subclass says how to make the Gymnasium object, how to start it, and what can be seen. Refusing
illegal actions, the end of an episode, and closing are done here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from envs.base import Observation, StepOutcome, TextEnv
from envs.options import Option, resolve_options


class GymTextEnv(TextEnv):
    """A Gymnasium environment with a fixed set of named actions.

    The step limit is the runner's: make the class itself rather than by ``gymnasium.make``, which
    adds another.
    """

    NAME: ClassVar[str]
    ACTIONS: ClassVar[tuple[str, ...]]
    """In Gymnasium's order: the place in this tuple is Gymnasium's action number."""
    OPTION_RULES: ClassVar[Mapping[str, Option]]

    def __init__(self) -> None:
        self._gym: Any = None
        self._made_with: Mapping[str, Any] | None = None
        self._done = True

    @property
    def done(self) -> bool:
        """Whether the episode is over, or none was started."""
        return self._done

    @property
    def gym(self) -> Any:
        """The Gymnasium object; raises RuntimeError before the first reset."""
        if self._gym is None:
            raise RuntimeError(f"{self.NAME}: no episode was started; call reset() first.")
        return self._gym

    @property
    def options(self) -> Mapping[str, Any]:
        """Every option of this episode; raises RuntimeError before the first reset."""
        if self._made_with is None:
            raise RuntimeError(f"{self.NAME}: no episode was started; call reset() first.")
        return self._made_with

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start an episode; raises ValueError for an option that cannot work."""
        resolved = resolve_options(self.NAME, self.OPTION_RULES, options)
        if self._made_with != resolved:
            self.close()
            self._gym, self._made_with = self.make_gym(resolved), resolved
        self.start(seed, resolved)
        self._done = False
        return self.observe()

    def step(self, action: str) -> StepOutcome:
        """Take one action; one that is not admissible changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        gym = self.gym
        if self._done:
            raise RuntimeError(f"{self.NAME}: the episode is over; call reset() before step().")
        if action not in self.admissible_actions():
            return StepOutcome(
                observation=self.observe(),
                reward=0.0,
                terminated=False,
                truncated=False,
                action_valid=False,
                info={"success": False},
            )
        _, reward, terminated, truncated, _ = gym.step(self.ACTIONS.index(action))
        self._done = bool(terminated or truncated)
        self.acted(action)
        return StepOutcome(
            observation=self.observe(),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) and not terminated,
            info={"success": self.is_success(float(reward), bool(terminated))},
        )

    def close(self) -> None:
        """Free the Gymnasium object; harmless when called twice."""
        if self._gym is not None:
            self._gym.close()
        self._gym, self._made_with, self._done = None, None, True

    def start(self, seed: int, options: Mapping[str, Any]) -> None:
        """Reset the Gymnasium object; a subclass may also choose where the episode begins."""
        self.gym.reset(seed=seed)

    def acted(self, action: str) -> None:
        """Called after each legal action."""

    def admissible_actions(self) -> tuple[str, ...]:
        """Names of the actions that are legal now."""
        return self.ACTIONS

    def is_success(self, reward: float, terminated: bool) -> bool:
        """Whether the episode just ended well."""
        return terminated and reward > 0

    @abstractmethod
    def make_gym(self, options: Mapping[str, Any]) -> Any:
        """The Gymnasium object for these options."""

    @abstractmethod
    def observe(self) -> Observation:
        """What can be seen now."""
