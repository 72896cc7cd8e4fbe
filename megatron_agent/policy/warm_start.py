"""Supervised learning on demonstrations: first to play, then to doubt.

The aim is a start for reinforcement learning, not a good player. *Learning* imitates the expert
until the policy succeeds in ``skill_success`` of the episodes. *Doubting* goes on with random
labels mixed in until no more than ``target_success`` is left. So the start tries every action,
also the ones that are seldom right, which a policy of the same success that was stopped while
still learning does not: reinforcement learning finds nothing where nothing is tried.

Success is measured on tasks that no demonstration comes from, with actions sampled at
temperature 1.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envs.registry import EnvSpec
from megatron_agent.errors import ConfigError
from megatron_agent.policy.demonstrations import Demonstration, EpisodeStart, demonstrate
from megatron_agent.policy.evaluate import Evaluation, evaluate_policy
from megatron_agent.policy.sampling import pad_left, positions
from megatron_agent.policy.tokenizer import encode_prompt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

NEARLY_GREEDY = 0.05
"""Temperature."""

DOUBT_RATE = 0.25
"""Learning rate of doubting, as a share of ``learning_rate``."""

Example = tuple[list[int], list[int]]
"""Prompt ids and response ids of one demonstration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartConfig:
    """How to warm-start; checked when made."""

    skill_success: float = 0.85
    """Learning ends at the first measurement at or above it."""
    target_success: float = 0.4
    """Doubting ends at the first measurement at or below it."""
    max_updates: int = 300
    """Of learning."""
    max_doubt_updates: int = 120
    batch_size: int = 32
    learning_rate: float = 2e-3
    num_warmup_updates: int = 20
    measure_every: int = 40
    """Updates between two measurements of learning."""
    measure_doubt_every: int = 10
    """Updates between two measurements of doubting, which is quick."""
    num_measure_episodes: int = 200
    max_steps: int = 10
    """Episode length limit, as ``env.max_steps`` in the run to come."""
    history_length: int = 2
    """Past steps in a prompt, as ``env.history_length`` in the run to come."""
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
        if not 0 < self.learning_rate < 1:
            raise ConfigError("learning_rate", "must be in (0, 1)", self.learning_rate, "Use 2e-3.")

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


def split_starts(
    spec: EnvSpec, starts: Sequence[EpisodeStart], num_measure: int
) -> tuple[list[EpisodeStart], list[EpisodeStart]]:
    """Divide starts into some to demonstrate and ``num_measure`` to measure on, with no state in
    common.

    Where the environment can tell that two seeds are the same start in disguise, the demonstrations
    do without every start that is measured.

    Raises:
        ConfigError: nothing is left to demonstrate.
    """

    def key_of(start: EpisodeStart) -> str:
        return spec.start_key(start.seed, start.options) if spec.start_key else str(start.seed)

    measured = list(starts[:num_measure])
    measured_keys = {key_of(start) for start in measured}
    shown = [start for start in starts[num_measure:] if key_of(start) not in measured_keys]
    if not shown:
        raise ConfigError(
            "num_tasks",
            f"must leave tasks to demonstrate beside the {num_measure} that are measured",
            len(starts),
            "Give more training tasks, or lower num_measure_episodes.",
        )
    return shown, measured


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spec: EnvSpec,
    starts: Sequence[EpisodeStart],
    config: WarmStartConfig,
    *,
    seed: int,
) -> WarmStartResult:
    """Train ``model`` in place on expert episodes; equal arguments give equal weights on one
    machine.

    Args:
        starts: training tasks. The first ``num_measure_episodes`` are set aside to measure on.
        seed: of demonstrations, shuffling and sampling.

    Raises:
        ConfigError: the environment has no expert, or there are too few tasks.
    """
    shown, measured = split_starts(spec, starts, config.num_measure_episodes)

    def measure(temperature: float) -> Evaluation:
        return evaluate_policy(
            model,
            tokenizer,
            spec,
            measured,
            max_steps=config.max_steps,
            history_length=config.history_length,
            temperature=temperature,
            seed=seed,
        )

    trainer = _Trainer(model, tokenizer, spec, shown, config, seed)
    num_updates, skill = 0, None
    while num_updates < config.max_updates:
        num_updates += 1
        trainer.update(_learning_rate(num_updates, config), label_noise=0.0)
        if num_updates % config.measure_every and num_updates < config.max_updates:
            continue
        skill = measure(temperature=1.0)
        _log("learning", num_updates, skill)
        if skill.success_rate >= config.skill_success:
            break
    assert skill is not None  # max_updates is at least 1
    evaluation, num_doubt_updates = skill, 0
    while (
        evaluation.success_rate > config.target_success
        and num_doubt_updates < config.max_doubt_updates
    ):
        num_doubt_updates += 1
        trainer.update(config.learning_rate * DOUBT_RATE, label_noise=config.label_noise)
        if (
            num_doubt_updates % config.measure_doubt_every
            and num_doubt_updates < config.max_doubt_updates
        ):
            continue
        evaluation = measure(temperature=1.0)
        _log("doubting", num_doubt_updates, evaluation)
    model.eval()
    return WarmStartResult(
        num_updates=num_updates,
        num_doubt_updates=num_doubt_updates,
        skill=skill,
        evaluation=evaluation,
        greedy=measure(temperature=NEARLY_GREEDY),
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


class _Trainer:
    """Updates on demonstrations, clean or noisy, from one optimizer and one stream of episodes
    for each kind.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        spec: EnvSpec,
        starts: Sequence[EpisodeStart],
        config: WarmStartConfig,
        seed: int,
    ) -> None:
        import torch

        self._model = model
        self._pad_id: int = tokenizer.pad_token_id
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self._batches: dict[float, Iterator[list[Example]]] = {
            noise: _batches(_examples(tokenizer, spec, starts, config, noise, seed), config)
            for noise in (0.0, config.label_noise)
        }

    def update(self, learning_rate: float, *, label_noise: float) -> None:
        import torch

        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._model.train()
        self._optimizer.zero_grad()
        response_loss(self._model, next(self._batches[label_noise]), self._pad_id).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()


def response_loss(model: PreTrainedModel, examples: Sequence[Example], pad_id: int) -> torch.Tensor:
    """Mean cross-entropy over the response tokens of a batch (a scalar tensor)."""
    import torch

    width = max(len(response) for _, response in examples)
    ids_NL, mask_NL = pad_left([prompt + response for prompt, response in examples], pad_id)
    output = model(
        input_ids=ids_NL,
        attention_mask=mask_NL,
        position_ids=positions(mask_NL),
        use_cache=False,
        # The last prompt token predicts the first response token.
        logits_to_keep=width + 1,
    )
    targets_NL = ids_NL[:, -width:].clone()
    for row, (_, response) in enumerate(examples):
        # Rows end at the right edge, so a shorter response leaves prompt tokens in the window.
        targets_NL[row, : width - len(response)] = -100
    return torch.nn.functional.cross_entropy(
        output.logits[:, :-1].flatten(0, 1), targets_NL.flatten(), ignore_index=-100
    )


def _examples(
    tokenizer: PreTrainedTokenizerBase,
    spec: EnvSpec,
    starts: Sequence[EpisodeStart],
    config: WarmStartConfig,
    label_noise: float,
    seed: int,
) -> Iterator[Example]:
    """Encoded demonstrations without end: every pass plays the episodes afresh and shuffles their
    steps.
    """
    rng = random.Random(seed)
    while True:
        demonstrations: list[Demonstration] = list(
            demonstrate(
                spec,
                starts,
                max_steps=config.max_steps,
                history_length=config.history_length,
                wander=config.wander,
                label_noise=label_noise,
                rng=rng,
            )
        )
        rng.shuffle(demonstrations)
        for demonstration in demonstrations:
            response_ids = tokenizer.encode(demonstration.response, add_special_tokens=False)
            yield (
                encode_prompt(tokenizer, demonstration.prompt),
                [*response_ids, tokenizer.eos_token_id],
            )


def _batches(examples: Iterator[Example], config: WarmStartConfig) -> Iterator[list[Example]]:
    while True:
        yield [next(examples) for _ in range(config.batch_size)]
