"""How credit is computed, checked when made. Error messages name keys as a user types them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from megatron_agent.credit.options import (
    HgpoOptions,
    SimilarityOptions,
    check_choice,
    check_flag,
    check_number,
)
from megatron_agent.errors import ConfigError

Mode = Literal["mean_norm", "mean_std_norm"]
EpisodeStatistics = Literal["trajectory", "row"]
LonelyEpisode = Literal["zero", "raw_score"]
RepeatedStates = Literal["every_visit", "first_visit"]
PenaltyMode = Literal["separate", "score", "step_return", "both"]
PenaltyReach = Literal["own_step", "earlier_steps"]

_GIGPO = "algorithm.gigpo."
_ACTOR = "actor_rollout_ref.actor."


@dataclass(frozen=True, kw_only=True)
class CreditConfig:
    """Options of the credit methods. Each method's file says which of them it reads.

    Example:
        >>> CreditConfig(gamma=0.95).mode
        'mean_norm'
    """

    gamma: float
    """Discount per step of the step returns, in [0, 1]. ``algorithm.gamma``."""
    lam: float = 1.0
    """GAE's trade of bias for variance, in [0, 1]. ``algorithm.lam``."""
    step_advantage_w: float = 1.0
    """Weight of the step-level part (gigpo)."""
    episode_advantage_w: float = 1.0
    """Weight of the episode-level part (gigpo, grpo)."""
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
    repeated_states: RepeatedStates = "every_visit"
    """A state that a session sees again: ``every_visit`` is a member of its step group, or the
    ``first_visit`` alone is, and later ones get no step-level credit (gigpo)."""
    similarity: SimilarityOptions | None = None
    """Group steps by similar text rather than by equal anchors (gigpo)."""
    hgpo: HgpoOptions = field(default_factory=HgpoOptions)
    whiten_advantages: bool = True
    """Centre and scale advantages over the rows of the batch (gae, step_reinforce).
    ``algorithm.whiten_advantages``."""
    normalize_by_length: bool = False
    """Score an episode by its return divided by its number of steps.
    ``algorithm.episode_reward.normalize_by_length``."""
    use_invalid_action_penalty: bool = True
    invalid_action_penalty_coef: float = 0.1
    """Size of the penalty for an invalid action, in units of the advantage (``separate``) or of the
    reward (the other modes)."""
    invalid_action_penalty_mode: PenaltyMode = "separate"
    """Where the penalty goes, see `megatron_agent.credit.penalty`."""
    invalid_action_penalty_reach: PenaltyReach = "own_step"
    """Whether the steps before an invalid action share its penalty, discounted by gamma."""
    epsilon: float = 1e-6
    """Added to the std before dividing."""

    def __post_init__(self) -> None:
        check_number("algorithm.gamma", self.gamma, "Use 0.95.", high=1.0)
        check_number("algorithm.lam", self.lam, "Use 1.0.", high=1.0)
        for name in ("step_advantage_w", "episode_advantage_w"):
            check_number(_GIGPO + name, getattr(self, name), "Use 1.0.")
        if self.step_advantage_w == 0 and self.episode_advantage_w == 0:
            raise ConfigError(
                _GIGPO + "step_advantage_w",
                "must not be 0 together with algorithm.gigpo.episode_advantage_w",
                self.step_advantage_w,
                "Give one of the two a weight, or nothing can be learned.",
            )
        check_choice(_GIGPO + "mode", self.mode, get_args(Mode))
        check_choice(
            _GIGPO + "episode_statistics", self.episode_statistics, get_args(EpisodeStatistics)
        )
        check_choice(_GIGPO + "lonely_episode", self.lonely_episode, get_args(LonelyEpisode))
        check_choice(_GIGPO + "repeated_states", self.repeated_states, get_args(RepeatedStates))
        if not isinstance(self.similarity, SimilarityOptions | None):
            raise ConfigError(
                _GIGPO + "similarity",
                "must be SimilarityOptions or None",
                self.similarity,
                "Use SimilarityOptions(threshold=0.95).",
            )
        if not isinstance(self.hgpo, HgpoOptions):
            raise ConfigError(
                "algorithm.hgpo", "must be HgpoOptions", self.hgpo, "Use HgpoOptions()."
            )
        check_flag("algorithm.whiten_advantages", self.whiten_advantages)
        check_flag("algorithm.episode_reward.normalize_by_length", self.normalize_by_length)
        self._check_penalty()
        check_number(_GIGPO + "epsilon", self.epsilon, "Use 1e-6.")
        if self.epsilon == 0:
            raise ConfigError(_GIGPO + "epsilon", "must be above 0", self.epsilon, "Use 1e-6.")

    def _check_penalty(self) -> None:
        check_flag(_ACTOR + "use_invalid_action_penalty", self.use_invalid_action_penalty)
        check_number(
            _ACTOR + "invalid_action_penalty_coef",
            self.invalid_action_penalty_coef,
            "Use 0.1; the penalty is subtracted, so it has no minus sign.",
        )
        for name, choices in (("mode", PenaltyMode), ("reach", PenaltyReach)):
            key = f"invalid_action_penalty_{name}"
            check_choice(_ACTOR + key, getattr(self, key), get_args(choices))
