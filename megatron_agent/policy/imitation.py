"""Gradient steps on demonstrations: encoded examples, batches, the loss, the optimizer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from envs.registry import EnvSpec
from megatron_agent.policy.demonstrations import Demonstration, demonstrate
from megatron_agent.policy.sampling import pad_left, positions
from megatron_agent.policy.tokenizer import encode_prompt
from megatron_agent.rollout.memory import load_memory

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from megatron_agent.policy.warm_start import WarmStartConfig
    from megatron_agent.task_rows import EnvTask

Example = tuple[list[int], list[int]]
"""Prompt ids and response ids of one demonstration."""


class Imitator:
    """Updates on demonstrations, clean or noisy, from one optimizer and one stream of episodes
    for each kind.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        spec: EnvSpec,
        tasks: Sequence[EnvTask],
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
            noise: _batches(_examples(tokenizer, spec, tasks, config, noise, seed), config)
            for noise in (0.0, config.label_noise)
        }

    def update(self, learning_rate: float, *, label_noise: float) -> None:
        """One step on a batch whose labels are spoiled at the rate ``label_noise``: 0, or that of
        the configuration.
        """
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
    tasks: Sequence[EnvTask],
    config: WarmStartConfig,
    label_noise: float,
    seed: int,
) -> Iterator[Example]:
    """Encoded demonstrations without end: every pass plays the episodes afresh and shuffles their
    steps.
    """
    rng = random.Random(seed)
    memory = load_memory(config.memory, config.history_length)
    while True:
        demonstrations: list[Demonstration] = list(
            demonstrate(
                spec,
                tasks,
                max_steps=config.max_steps,
                memory=memory,
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
