"""How credit is computed, checked when made. Error messages name keys as a user types them."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from megatron_agent.errors import ConfigError

Mode = Literal["mean_norm", "mean_std_norm"]
EpisodeStatistics = Literal["trajectory", "row"]
LonelyEpisode = Literal["zero", "raw_score"]
PenaltyMode = Literal["separate", "reference"]

_GIGPO = "algorithm.gigpo."
_ACTOR = "actor_rollout_ref.actor."


@dataclass(frozen=True, kw_only=True)
class CreditConfig:
    """Options of the credit methods.

    Example:
        >>> CreditConfig(gamma=0.95).mode
        'mean_norm'
    """

    gamma: float
    """Discount per step of the step returns, in [0, 1]. ``algorithm.gamma``."""
    step_advantage_w: float = 1.0
    """Weight of the step-level part."""
    episode_advantage_w: float = 1.0
    """Weight of the episode-level part."""
    mode: Mode = "mean_norm"
    """``mean_norm``: distance from the group's mean; ``mean_std_norm``: that over its std."""
    episode_statistics: EpisodeStatistics = "trajectory"
    """Whom a group's mean and std are taken over. ``trajectory``: each session counts once, as in
    the paper's Eq. 3. ``row``: each step counts, so a 50-step failure weighs five times as much
    as a 10-step success, as in the reference implementation (langfengQ/verl-agent) since
    2025-06-05."""
    lonely_episode: LonelyEpisode = "zero"
    """Episode-level part of a group of one. ``raw_score`` keeps the score as it is, as the
    reference implementation does; that rewards a session for its task being easy."""
    use_invalid_action_penalty: bool = True
    invalid_action_penalty_coef: float = 0.1
    """Size of the penalty for an invalid action, in units of the advantage (``separate``) or of the
    reward (``reference``)."""
    invalid_action_penalty_mode: PenaltyMode = "separate"
    """Where the penalty goes, see `megatron_agent.credit.penalty`."""
    epsilon: float = 1e-6
    """Added to the std before dividing."""

    def __post_init__(self) -> None:
        _check_number("algorithm.gamma", self.gamma, "Use 0.95.", high=1.0)
        for name in ("step_advantage_w", "episode_advantage_w"):
            _check_number(_GIGPO + name, getattr(self, name), "Use 1.0.")
        if self.step_advantage_w == 0 and self.episode_advantage_w == 0:
            raise ConfigError(
                _GIGPO + "step_advantage_w",
                "must not be 0 together with algorithm.gigpo.episode_advantage_w",
                self.step_advantage_w,
                "Give one of the two a weight, or nothing can be learned.",
            )
        _check_choice(_GIGPO + "mode", self.mode, get_args(Mode))
        _check_choice(
            _GIGPO + "episode_statistics", self.episode_statistics, get_args(EpisodeStatistics)
        )
        _check_choice(_GIGPO + "lonely_episode", self.lonely_episode, get_args(LonelyEpisode))
        if not isinstance(self.use_invalid_action_penalty, bool):
            raise ConfigError(
                _ACTOR + "use_invalid_action_penalty",
                "must be true or false",
                self.use_invalid_action_penalty,
                "Write True or False, without quotes.",
            )
        _check_number(
            _ACTOR + "invalid_action_penalty_coef",
            self.invalid_action_penalty_coef,
            "Use 0.1; the penalty is subtracted, so it has no minus sign.",
        )
        _check_choice(
            _ACTOR + "invalid_action_penalty_mode",
            self.invalid_action_penalty_mode,
            get_args(PenaltyMode),
        )
        _check_number(_GIGPO + "epsilon", self.epsilon, "Use 1e-6.")
        if self.epsilon == 0:
            raise ConfigError(_GIGPO + "epsilon", "must be above 0", self.epsilon, "Use 1e-6.")


def _check_number(key: str, value: object, remedy: str, *, high: float = math.inf) -> None:
    rule = (
        "must be a finite number >= 0" if high == math.inf else f"must be a number in [0, {high:g}]"
    )
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and 0 <= value <= high):  # type: ignore[arg-type, operator]
        raise ConfigError(key, rule, value, remedy)


def _check_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else f"Use {choices[0]!r}, the default."
    raise ConfigError(key, f"must be one of {', '.join(choices)}", value, remedy)
