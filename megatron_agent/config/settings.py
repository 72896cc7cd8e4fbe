"""Our own keys, typed. verl's keys keep living in its configuration tree and are checked by
`rules`.

`AgentSettings.from_config` works in every process of a run, on the configuration a user writes and
on the one that verl gets from `split_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from omegaconf import DictConfig

from megatron_agent.config.fields import read_settings, ruled
from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues
from megatron_agent.credit import CreditConfig, HgpoOptions, SimilarityOptions

PENALTY_KEYS: Mapping[str, str] = {
    "use_invalid_action_penalty": "enabled",
    "invalid_action_penalty_coef": "coef",
    "invalid_action_penalty_mode": "mode",
    "invalid_action_penalty_reach": "reach",
}
"""Keys that users write below `ACTOR_KEY`, and their names below `PENALTY_KEY`."""

ACTOR_KEY = "actor_rollout_ref.actor"
PENALTY_KEY = "algorithm.invalid_action_penalty"
"""Where the penalty travels inside verl, whose actor dataclass rejects keys of others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSettings:
    """The task lists that are generated when no dataset is given."""

    num_train: int = ruled(at_least=1)
    """Tasks to train on."""
    num_eval: int = ruled(at_least=1)
    """Held-out tasks; their seeds are disjoint from those of training."""
    seed: int = ruled(at_least=0)
    """Decides which environment seeds are drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSettings:
    """How many sessions share a task."""

    n: int = ruled(at_least=1, remedy="Use a group size such as 8.")
    """Group size G: sessions of one task, all starting in the same state."""
    redundancy: int = ruled(at_least=0, remedy="Use 0 for none.")
    """Environments that a group starts beyond its sessions; which are played is known before the
    first action (docs/faults.md)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvSettings:
    """Keys below ``env``."""

    env_name: str
    """Name of an environment (``megatron-agent env list``), ``gym:ID``, or
    ``package.module:Class``."""
    seed: int = ruled(at_least=0)
    """Seed of the run's data order; the seeds of single tasks stand in the dataset."""
    max_steps: int = ruled(at_least=1, remedy="Allow at least one step.")
    """Steps after which an episode is truncated."""
    history_length: int = ruled(at_least=0, remedy="Use 0 for prompts without memory.")
    """Past steps shown in a prompt; 0 shows none."""
    memory: str
    """Memory module that chooses what is shown: a name, or ``package.module:Class``."""
    prompt_file: str | None
    """A prompt template to use instead of the environment's own (`envs.prompt_template`)."""
    images: bool
    """Whether the policy sees the image of the present observation, beside the prompt's text."""
    options: Mapping[str, Any]
    """Passed to the environment's reset; each environment checks its own."""
    max_failure_rate: float = ruled(at_least=0, at_most=1)
    """Share of failed episodes in an iteration above which the run stops."""
    num_workers: int = ruled(at_least=1)
    """Processes that hold environments."""
    step_timeout_s: float = ruled(above=0)
    """Longest an environment step may take before its worker is replaced."""
    reset_timeout_s: float = ruled(above=0)
    """Longest a reset may take."""
    start_timeout_s: float = ruled(above=0)
    """Longest a worker may take until it is ready."""
    worker_memory_limit: int | str | None
    """Most memory a worker may hold before it is replaced: bytes, or a size such as 8GiB."""
    generate_timeout_s: float = ruled(above=0)
    """Longest the inference servers may take for one response; then the episode has failed."""
    rollout: GroupSettings
    tasks: TaskSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class GigpoSettings:
    """Keys below ``algorithm.gigpo``."""

    step_advantage_w: float = ruled(at_least=0)
    """Weight of the step advantage; 0 leaves the episode advantage alone."""
    episode_advantage_w: float = ruled(at_least=0)
    """Weight of the episode advantage."""
    mode: str = ruled(one_of=("mean_norm", "mean_std_norm"))
    """Centre groups only, or divide by their standard deviation too."""
    enable_similarity: bool
    """Group steps whose anchors are alike, not only equal ones."""
    similarity_thresh: float = ruled(above=0, at_most=1, remedy="Use 0.95.")
    """How alike, in (0, 1]; 1 means equal."""
    similarity_measure: str = ruled(one_of=("character", "token"))
    """What likeness counts."""
    similarity_keep_numbers: bool
    """Never group texts that hold different numbers or ids."""
    similarity_max_comparisons: int = ruled(at_least=1, remedy="Use 1000000.")
    """Work per task group, in comparisons of texts of 300 characters; the rest by equality."""
    episode_statistics: str = ruled(one_of=("trajectory", "row"))
    """Whether an episode counts once in its group's mean, or once for each of its rows."""
    lonely_episode: str = ruled(one_of=("zero", "raw_score"))
    """Credit of an episode without peers: nothing, or its return as it is."""
    repeated_states: str = ruled(one_of=("every_visit", "first_visit"))
    """Whether a session is in a step group with each visit of the state, or with its first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HgpoSettings:
    """Keys below ``algorithm.hgpo``."""

    mode: str = ruled(one_of=("mean_norm", "mean_std_norm"))
    """Centre groups only, or divide by their standard deviation too."""
    history_length: int = ruled(at_least=0, remedy="Use ${env.history_length}.")
    """Earlier observations that peers may have to share, the paper's K."""
    length_weight_alpha: float = ruled(at_least=0, remedy="Use 1.0.")
    """How much more a comparison of longer histories weighs; 0 weighs all alike."""
    base_group: bool
    """Average the episode level in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRewardSettings:
    """Keys below ``algorithm.episode_reward``."""

    normalize_by_length: bool
    """Score an episode by its return over its number of steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlongPenaltySettings:
    """Keys below ``algorithm.overlong_penalty``."""

    coef: float = ruled(at_least=0, remedy="The penalty is subtracted: give its size.")
    """Cost of a response of full length, in units of the reward; 0 is off."""
    buffer_length: int = ruled(at_least=1)
    """Tokens before the limit over which the cost grows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PenaltySettings:
    """What an action costs that the environment did not accept."""

    enabled: bool
    coef: float = ruled(at_least=0, remedy="The penalty is subtracted: give its size.")
    mode: str = ruled(one_of=("separate", "score", "step_return", "both"))
    """Where it is subtracted: see `megatron_agent.credit.penalty`."""
    reach: str = ruled(one_of=("own_step", "earlier_steps"))
    """Whether the steps before the action share it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Keys below ``run``."""

    name: str
    dir: str
    """Everything a run writes is below this folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlgorithmSettings:
    """The keys of ``algorithm`` that we read ourselves."""

    adv_estimator: str
    """Name of a credit method (`megatron_agent.credit`)."""
    gamma: float = ruled(at_least=0, at_most=1, remedy="Use 0.95.")
    """Discount of step returns."""
    lam: float = ruled(at_least=0, at_most=1, remedy="Use 0.95.")
    """GAE's lambda, per step."""
    norm_adv_by_std_in_grpo: bool
    """verl's switch: whether GRPO divides by the group's standard deviation."""
    whiten_advantages: bool
    """Whether gae and step_reinforce centre and scale advantages over the batch."""
    filter_at_bound: str = ruled(one_of=("train", "stop"))
    """What a step of dynamic sampling does when it may roll out no more groups."""
    row_weights: str = ruled(one_of=("token_mean", "trajectory", "step"))
    """How rows weigh in the loss: see `megatron_agent.credit.row_weights`."""
    episode_reward: EpisodeRewardSettings
    overlong_penalty: OverlongPenaltySettings
    gigpo: GigpoSettings
    hgpo: HgpoSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSettings:
    """All of our keys as plain, picklable data.

    Example:
        >>> settings = AgentSettings.from_config(config)  # doctest: +SKIP
        >>> settings.env.rollout.n, settings.algorithm.gamma  # doctest: +SKIP
        (8, 0.95)
    """

    env: EnvSettings
    algorithm: AlgorithmSettings
    invalid_action_penalty: PenaltySettings
    run: RunSettings

    def credit_config(self, method: str | None = None) -> CreditConfig:
        """The options of the credit methods.

        GRPO keeps verl's own switch for dividing by the standard deviation, HGPO has
        ``algorithm.hgpo.mode``; all other methods read ``algorithm.gigpo.mode``.

        Args:
            method: credit method; ``algorithm.adv_estimator`` when None.

        Raises:
            ConfigError: options that cannot work together.
        """
        algorithm, penalty = self.algorithm, self.invalid_action_penalty
        gigpo, hgpo = algorithm.gigpo, algorithm.hgpo
        similarity = None
        if gigpo.enable_similarity:
            similarity = SimilarityOptions(
                threshold=gigpo.similarity_thresh,
                measure=cast("Any", gigpo.similarity_measure),
                keep_numbers=gigpo.similarity_keep_numbers,
                max_comparisons=gigpo.similarity_max_comparisons,
            )
        return CreditConfig(
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            step_advantage_w=gigpo.step_advantage_w,
            episode_advantage_w=gigpo.episode_advantage_w,
            mode=cast("Any", self._mode(method or algorithm.adv_estimator)),
            episode_statistics=cast("Any", gigpo.episode_statistics),
            lonely_episode=cast("Any", gigpo.lonely_episode),
            repeated_states=cast("Any", gigpo.repeated_states),
            similarity=similarity,
            hgpo=HgpoOptions(
                history_length=hgpo.history_length,
                length_weight_alpha=hgpo.length_weight_alpha,
                base_group=hgpo.base_group,
            ),
            whiten_advantages=algorithm.whiten_advantages,
            normalize_by_length=algorithm.episode_reward.normalize_by_length,
            use_invalid_action_penalty=penalty.enabled,
            invalid_action_penalty_coef=penalty.coef,
            invalid_action_penalty_mode=cast("Any", penalty.mode),
            invalid_action_penalty_reach=cast("Any", penalty.reach),
        )

    def _mode(self, method: str) -> str:
        if method == "grpo":
            return "mean_std_norm" if self.algorithm.norm_adv_by_std_in_grpo else "mean_norm"
        return self.algorithm.hgpo.mode if method == "hgpo" else self.algorithm.gigpo.mode

    @classmethod
    def from_config(cls, config: DictConfig) -> AgentSettings:
        """Read our keys.

        Args:
            config: as a user writes it, or as `split_config` returned it for verl.

        Raises:
            ConfigProblemsError: a key is missing, unknown, of a wrong type or out of range.
        """
        findings = Findings()
        settings = read_agent_settings(ConfigValues.from_config(config), findings)
        findings.raise_if_any()
        assert settings is not None
        return settings


def read_agent_settings(values: ConfigValues, findings: Findings) -> AgentSettings | None:
    """Read our keys and record what is wrong with them; None when something was."""
    algorithm = {
        field.name: values.get(f"algorithm.{field.name}")
        for field in fields(AlgorithmSettings)
        if values.get(f"algorithm.{field.name}") is not None
    }
    env = read_settings(EnvSettings, values.get("env"), "env", findings)
    read_algorithm = read_settings(AlgorithmSettings, algorithm, "algorithm", findings)
    penalty = _read_penalty(values, findings)
    run = read_settings(RunSettings, values.get("run"), "run", findings)
    if env is None or read_algorithm is None or penalty is None or run is None:
        return None
    return AgentSettings(env=env, algorithm=read_algorithm, invalid_action_penalty=penalty, run=run)


def _read_penalty(values: ConfigValues, findings: Findings) -> PenaltySettings | None:
    travelling = values.get(PENALTY_KEY)
    if travelling is not None:
        return read_settings(PenaltySettings, travelling, PENALTY_KEY, findings)
    actor = values.mapping(ACTOR_KEY)
    section = {name: actor[key] for key, name in PENALTY_KEYS.items() if key in actor}
    # Read under the travelling names, report under the names that the user wrote.
    inner = Findings()
    settings = read_settings(PenaltySettings, section, PENALTY_KEY, inner)
    user_keys = {
        f"{PENALTY_KEY}.{name}": f"{ACTOR_KEY}.{key}" for key, name in PENALTY_KEYS.items()
    }
    for problem in inner.problems:
        key = user_keys.get(problem.key, problem.key)
        remedy = problem.remedy.replace(problem.key, key)
        findings.problem(key, problem.rule, problem.value, remedy)
    return settings
