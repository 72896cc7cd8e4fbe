"""Supervised learning on demonstrations: first to play, then to doubt.

The aim is a start for reinforcement learning, not a good player. *Learning* imitates the expert
until the policy succeeds in ``skill_success`` of the episodes. *Doubting* goes on with random
labels mixed in until no more than ``target_success`` is left. So the start tries every action,
also the ones that are seldom right, which a policy of the same success that was stopped while
still learning does not: reinforcement learning finds nothing where nothing is tried.

Doubt differs from forgetting in what the policy does at a temperature near zero. The first noisy
updates can make it forget (0.9 falls to 0.4 at any temperature, and comes back some updates later),
so doubting goes on until the nearly greedy policy is clearly the better one.

Success is measured on tasks that no demonstration comes from, with actions sampled at
temperature 1.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envs.registry import EnvSpec
from megatron_agent.errors import ConfigError
from megatron_agent.policy.evaluate import Evaluation, evaluate_policy
from megatron_agent.policy.imitation import Imitator
from megatron_agent.rollout.memory import load_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from megatron_agent.task_rows import EnvTask

logger = logging.getLogger(__name__)

NEARLY_GREEDY = 0.05
"""Temperature."""

DOUBT_RATE = 0.25
"""Learning rate of doubting, as a share of ``learning_rate``."""

TARGET_TOLERANCE = 0.05
"""Success this far above the target is near it: 200 episodes tell no smaller difference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartConfig:
    """How to warm-start; checked when made."""

    skill_success: float = 0.85
    """Learning ends at the first measurement at or above it."""
    target_success: float = 0.4
    """Doubting ends at the first measurement near or below it, if the nearly greedy policy succeeds
    more often by a fifth, or by half of what separates ``skill_success`` from this if that is less.
    """
    max_updates: int = 300
    """Of learning."""
    max_doubt_updates: int = 120
    batch_size: int = 32
    learning_rate: float = 2e-3
    num_warmup_updates: int = 20
    measure_every: int = 40
    """Updates between two measurements of learning."""
    measure_doubt_every: int = 4
    """Updates between two measurements of doubting, where success falls by a tenth in a few."""
    num_measure_episodes: int = 200
    max_steps: int = 10
    """Episode length limit, as ``env.max_steps`` in the run to come."""
    history_length: int = 2
    """Past steps in a prompt, as ``env.history_length`` in the run to come."""
    memory: str = "window"
    """Which past steps, as ``env.memory`` in the run to come."""
    prompt_file: str | None = None
    """Instead of the environment's own prompt, as ``env.prompt_file`` in the run to come."""
    wander: float = 0.3
    """Chance of a random move; see `megatron_agent.policy.demonstrations`."""
    label_noise: float = 0.5
    """Chance of a random label while doubting. It bounds how low success can get."""

    def __post_init__(self) -> None:
        for key in ("skill_success", "target_success", "wander", "label_noise"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(key, "must be in [0, 1]", getattr(self, key), "Use e.g. 0.4.")
        for key in (
            "max_updates",
            "max_doubt_updates",
            "batch_size",
            "num_warmup_updates",
            "measure_every",
            "measure_doubt_every",
            "num_measure_episodes",
            "max_steps",
        ):
            if getattr(self, key) < 1:
                raise ConfigError(key, "must be at least 1", getattr(self, key), "Leave it out.")
        if self.target_success > self.skill_success:
            raise ConfigError(
                "target_success",
                f"must be at most skill_success ({self.skill_success})",
                self.target_success,
                f"Use {self.skill_success} for a start without doubts.",
            )
        if self.history_length < 0:
            raise ConfigError("history_length", "must be >= 0", self.history_length, "Use 2.")
        try:
            load_memory(self.memory, self.history_length)
        except ConfigError as error:
            raise ConfigError("memory", error.rule, error.value, error.remedy) from error
        if not 0 < self.learning_rate < 1:
            raise ConfigError("learning_rate", "must be in (0, 1)", self.learning_rate, "Use 2e-3.")

    @property
    def doubt_gap(self) -> float:
        """By how much the nearly greedy policy must succeed more often than the sampled one."""
        return min(0.2, (self.skill_success - self.target_success) / 2)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartResult:
    """What came of a warm start."""

    num_updates: int
    """Of learning."""
    num_doubt_updates: int
    skill: Evaluation
    """The measurement that ended learning."""
    evaluation: Evaluation
    """The measurement that ended it all: where reinforcement learning starts."""
    greedy: Evaluation
    """The same tasks at a temperature near zero: what the policy knows, and sampling hides."""


def split_tasks(
    spec: EnvSpec, tasks: Sequence[EnvTask], num_measure: int
) -> tuple[list[EnvTask], list[EnvTask]]:
    """Divide tasks into some to demonstrate and ``num_measure`` to measure on, with no start in
    common.

    Where the environment can tell that two seeds are the same start in disguise, the demonstrations
    do without every start that is measured.

    Raises:
        ConfigError: nothing is left to demonstrate.
    """

    def key_of(task: EnvTask) -> str:
        return spec.start_key(task.seed, task.options) if spec.start_key else str(task.seed)

    measured = list(tasks[:num_measure])
    measured_keys = {key_of(task) for task in measured}
    shown = [task for task in tasks[num_measure:] if key_of(task) not in measured_keys]
    if not shown:
        raise ConfigError(
            "num_tasks",
            f"must leave tasks to demonstrate beside the {num_measure} that are measured",
            len(tasks),
            "Give more training tasks, or lower num_measure_episodes.",
        )
    return shown, measured


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spec: EnvSpec,
    tasks: Sequence[EnvTask],
    config: WarmStartConfig,
    *,
    seed: int,
) -> WarmStartResult:
    """Train ``model`` in place on expert episodes; equal arguments give equal weights on one
    machine.

    Args:
        spec: the environment, with the prompt of ``config.prompt_file`` if there is one.
        tasks: to train on. The first ``num_measure_episodes`` are set aside to measure on.
        seed: of demonstrations, shuffling and sampling.

    Raises:
        ConfigError: the environment has no expert, or there are too few tasks.
    """
    shown, measured = split_tasks(spec, tasks, config.num_measure_episodes)

    def measure(temperature: float) -> Evaluation:
        return evaluate_policy(
            model,
            tokenizer,
            spec,
            measured,
            max_steps=config.max_steps,
            history_length=config.history_length,
            memory=config.memory,
            temperature=temperature,
            seed=seed,
        )

    imitator = Imitator(model, tokenizer, spec, shown, config, seed)
    num_updates, skill = 0, None
    while num_updates < config.max_updates:
        num_updates += 1
        imitator.update(_learning_rate(num_updates, config), label_noise=0.0)
        if num_updates % config.measure_every and num_updates < config.max_updates:
            continue
        skill = measure(temperature=1.0)
        _log("learning", num_updates, skill)
        if skill.success_rate >= config.skill_success:
            break
    assert skill is not None  # max_updates is at least 1
    evaluation, greedy, num_doubt_updates = skill, None, 0
    while skill.success_rate > config.target_success and (
        num_doubt_updates < config.max_doubt_updates
    ):
        num_doubt_updates += 1
        imitator.update(config.learning_rate * DOUBT_RATE, label_noise=config.label_noise)
        if (
            num_doubt_updates % config.measure_doubt_every
            and num_doubt_updates < config.max_doubt_updates
        ):
            continue
        evaluation, greedy = measure(temperature=1.0), None
        _log("doubting", num_doubt_updates, evaluation)
        if evaluation.success_rate <= config.target_success + TARGET_TOLERANCE:
            greedy = measure(temperature=NEARLY_GREEDY)
            if greedy.success_rate - evaluation.success_rate >= config.doubt_gap:
                break
    model.eval()
    return WarmStartResult(
        num_updates=num_updates,
        num_doubt_updates=num_doubt_updates,
        skill=skill,
        evaluation=evaluation,
        greedy=greedy or measure(temperature=NEARLY_GREEDY),
    )


def _log(phase: str, update: int, evaluation: Evaluation) -> None:
    logger.info(
        "%s: update %d, success %.2f [%.2f, %.2f], valid actions %.2f",
        phase,
        update,
        evaluation.success_rate,
        evaluation.interval_low,
        evaluation.interval_high,
        evaluation.valid_action_rate,
    )


def _learning_rate(update: int, config: WarmStartConfig) -> float:
    """Linear warm-up, then linear decay to a tenth: a steady rate leaves success jumping about."""
    warmup = min(1.0, update / config.num_warmup_updates)
    return config.learning_rate * warmup * (1.0 - 0.9 * update / config.max_updates)
