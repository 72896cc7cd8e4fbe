"""A policy that sees, as verl has it: pictures become tokens, and nothing else does.

The tokens of a picture mean something only as long as the picture is behind them: the trainer pairs
the k-th run of them with the k-th picture of the row. A token of that kind in a text or in a
response would break the pairing and end the run, so here it ends one episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.utils.tokenizer import get_processor_token_id
from verl.workers.rollout.utils import get_vision_placeholder_token_ids

from megatron_agent.errors import ConfigError, GenerationError
from megatron_agent.rollout.parts import MessageContent
from megatron_agent.types import EncodedPrompt


def require_eyes(agent_loop: AgentLoopBase) -> None:
    """Refuse a policy that cannot see.

    Raises:
        ConfigError: verl has no processor for the model; it only warns when it cannot load one.
    """
    builder = agent_loop.continuous_token_builder
    if agent_loop.processor is None or not builder.supports_multimodal():
        raise ConfigError(
            "actor_rollout_ref.model.path",
            "must be a vision-language model whose processor verl can load, with env.images=true",
            str(agent_loop.config.actor_rollout_ref.model.path),
            "Use one such as Qwen2.5-VL, or set env.images=false. verl's warning has the reason.",
        )


async def encode_message(agent_loop: AgentLoopBase, content: MessageContent) -> EncodedPrompt:
    """Tokens of a one-message conversation.

    Unlike ``ct_build_initial_tokens`` nothing is cut off from the left: a prompt that is too long
    ends its episode instead of losing the task's text.

    Args:
        agent_loop: has the processor, and the builder that renders conversations.
        content: a text, or texts and pictures.

    Raises:
        GenerationError: a text that holds a token which stands for a picture or a video.
    """
    _refuse_placeholders(agent_loop.processor, content)
    messages = [{"role": "user", "content": content}]
    build = agent_loop.continuous_token_builder.build_initial_tokens
    if isinstance(content, str):
        return EncodedPrompt(ids_L=tuple(build(messages)))
    # verl brings pictures to a size that server and trainer leave alone.
    images = (await agent_loop.process_multi_modal_info(messages))["images"]
    ids_L = await asyncio.to_thread(build, messages, images=images)
    image_token_id = get_processor_token_id(agent_loop.processor, "image")
    return EncodedPrompt(
        ids_L=tuple(ids_L),
        images=tuple(images),
        num_image_tokens=ids_L.count(image_token_id),
    )


def check_response(processor: Any, token_ids_L: Sequence[int]) -> None:
    """Refuse a response with tokens that stand for pictures; a policy may sample any token.

    Raises:
        GenerationError: there is one.
    """
    found = set(get_vision_placeholder_token_ids(processor)).intersection(token_ids_L)
    if found:
        raise GenerationError(
            f"the response holds token {min(found)}, which stands for a picture or a video."
        )


def _refuse_placeholders(processor: Any, content: MessageContent) -> None:
    parts = [{"text": content}] if isinstance(content, str) else content
    for token_id in get_vision_placeholder_token_ids(processor):
        token = processor.tokenizer.convert_ids_to_tokens(token_id)
        if any(token in part.get("text", "") for part in parts):
            raise GenerationError(
                f"a prompt's text must not hold {token}, which stands for a picture or a video."
            )
