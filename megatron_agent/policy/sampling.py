"""Batched sampling from a small model on the CPU: left padding, one key-value cache, no server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def pad_left(ids_N: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, both ``[N, L]``: every row ends at the right edge.

    Example:
        >>> ids_NL, mask_NL = pad_left([[5], [6, 7]], pad_id=0)
        >>> ids_NL.tolist(), mask_NL.tolist()
        ([[0, 5], [6, 7]], [[0, 1], [1, 1]])
    """
    import torch

    width = max(len(ids) for ids in ids_N)
    ids_NL = torch.tensor([[pad_id] * (width - len(ids)) + list(ids) for ids in ids_N])
    mask_NL = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in ids_N])
    return ids_NL, mask_NL


def positions(mask_NL: torch.Tensor) -> torch.Tensor:
    """Position ids ``[N, L]`` that start at 0 on the first real token of each row."""
    return (mask_NL.cumsum(dim=1) - 1).clamp(min=0)


def sample_responses(
    model: PreTrainedModel,
    prompt_ids_N: Sequence[Sequence[int]],
    *,
    eos_id: int,
    pad_id: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> list[list[int]]:
    """Sample one response for each prompt.

    Args:
        prompt_ids_N: one list of ids for each row; lengths may differ.
        temperature: of the softmax; no top-k or top-p.
        generator: the only source of randomness.

    Returns:
        Response ids of each row, ``eos_id`` included when it was sampled, without padding.
    """
    import torch

    ids_NL, mask_NL = pad_left(prompt_ids_N, pad_id)
    position_N = positions(mask_NL)
    responses_N: list[list[int]] = [[] for _ in prompt_ids_N]
    done_N = torch.zeros(len(prompt_ids_N), dtype=torch.bool)
    cache = None
    with torch.inference_mode():
        for _ in range(max_new_tokens):
            output = model(
                input_ids=ids_NL,
                attention_mask=mask_NL,
                position_ids=position_N,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            probabilities_NV = torch.softmax(output.logits[:, -1].float() / temperature, dim=-1)
            sampled_N = torch.multinomial(probabilities_NV, 1, generator=generator)[:, 0]
            for response, token_id, done in zip(
                responses_N, sampled_N.tolist(), done_N.tolist(), strict=True
            ):
                if not done:
                    response.append(token_id)
            done_N |= sampled_N == eos_id
            if bool(done_N.all()):
                break
            ids_NL = sampled_N[:, None]
            mask_NL = torch.cat([mask_NL, torch.ones_like(mask_NL[:, :1])], dim=1)
            position_N = position_N[:, -1:] + 1
    return responses_N
