"""Supervised learning on demonstrations until the policy succeeds often enough, and no longer.

The aim is a start for reinforcement learning, not a good player: training stops at the first
measurement at or above ``target_success``, taken on tasks that no demonstration comes from, with
actions sampled at temperature 1.
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

Example = tuple[list[int], list[int]]
"""Prompt ids and response ids of one demonstration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartConfig:
    """How to warm-start; checked when made."""

    target_success: float = 0.4
    min_updates: int = 260
    """No measurement ends it earlier. A policy that walks blindly towards the goal is soon as
    successful as a noisy one that looks, but reinforcement learning hardly improves it."""
    max_updates: int = 300
    batch_size: int = 32
    learning_rate: float = 2e-3
    num_warmup_updates: int = 20
    measure_every: int = 20
    num_measure_episodes: int = 200
    max_steps: int = 10
    """Episode length limit, as ``env.max_steps`` in the run to come."""
    history_length: int = 2
    """Past steps in a prompt, as ``env.history_length`` in the run to come."""
    wander: float = 0.3
    """Chance of a random move; see `megatron_agent.policy.demonstrations`."""
    label_noise: float = 0.4
    """Chance of a random label: how far the policy that samples stays below what it knows."""

    def __post_init__(self) -> None:
        for key in ("target_success", "wander", "label_noise"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(key, "must be in [0, 1]", getattr(self, key), "Use e.g. 0.4.")
        for key in (
            "min_updates",
            "max_updates",
            "batch_size",
            "num_warmup_updates",
            "measure_every",
            "num_measure_episodes",
            "max_steps",
        ):
            if getattr(self, key) < 1:
                raise ConfigError(key, "must be at least 1", getattr(self, key), "Leave it out.")
        if self.min_updates > self.max_updates:
            raise ConfigError(
                "min_updates",
                f"must be at most max_updates ({self.max_updates})",
                self.min_updates,
                f"Use {self.max_updates}.",
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
    reached_target: bool
    loss: float
    """Mean over response tokens of the last batch."""
    evaluation: Evaluation
    """The measurement that ended it."""
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
    import torch

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

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
    )
    batches = _batches(_examples(tokenizer, spec, shown, config, seed), config.batch_size)
    for update in range(1, config.max_updates + 1):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * _schedule(update, config)
        loss = _update(model, optimizer, next(batches), tokenizer.pad_token_id)
        if update < config.min_updates or (
            update % config.measure_every and update < config.max_updates
        ):
            continue
        evaluation = measure(temperature=1.0)
        logger.info(
            "warm start: update %d, loss %.3f, success %.2f [%.2f, %.2f], valid actions %.2f",
            update,
            loss,
            evaluation.success_rate,
            evaluation.interval_low,
            evaluation.interval_high,
            evaluation.valid_action_rate,
        )
        if evaluation.success_rate >= config.target_success:
            break
    model.eval()
    return WarmStartResult(
        num_updates=update,
        reached_target=evaluation.success_rate >= config.target_success,
        loss=loss,
        evaluation=evaluation,
        greedy=measure(temperature=NEARLY_GREEDY),
    )


def _schedule(update: int, config: WarmStartConfig) -> float:
    """Linear warm-up, then linear decay to a tenth: a steady rate leaves success jumping about."""
    warmup = min(1.0, update / config.num_warmup_updates)
    return warmup * (1.0 - 0.9 * update / config.max_updates)


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


def _update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[Example],
    pad_id: int,
) -> float:
    import torch

    model.train()
    optimizer.zero_grad()
    loss = response_loss(model, examples, pad_id)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def _examples(
    tokenizer: PreTrainedTokenizerBase,
    spec: EnvSpec,
    starts: Sequence[EpisodeStart],
    config: WarmStartConfig,
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
                label_noise=config.label_noise,
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


def _batches(examples: Iterator[Example], batch_size: int) -> Iterator[list[Example]]:
    while True:
        yield [next(examples) for _ in range(batch_size)]
