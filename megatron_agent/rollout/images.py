"""The image of an observation on its way into a prompt (Qwen2.5-VL's message format).

A policy that sees gets the image of the present observation; the past is told in words, so a row
holds one image however long the episode is. Where the image stands in the message is the prompt's
business (`envs.base.IMAGE_MARK`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

from envs.base import IMAGE_MARK, Observation
from megatron_agent.errors import ConfigError, EnvError
from megatron_agent.rollout.parts import MessageContent

if TYPE_CHECKING:
    from PIL.Image import Image


def seen(observation: Observation, *, step_idx: int, with_image: bool) -> Observation:
    """The observation as the policy gets it: with its image, or without one.

    Args:
        observation: as the environment gave it.
        step_idx: for messages.
        with_image: whether the policy sees.

    Raises:
        ConfigError: the policy sees, and there is no image.
        EnvError: the image is not an RGB array.
    """
    image = observation.image
    if not with_image:
        return observation if image is None else dataclasses.replace(observation, image=None)
    if image is None:
        raise ConfigError(
            "env.images",
            f"must be false for observations without an image, such as the one of step {step_idx}",
            True,
            "Set it to false, or have the environment draw (often env.options.image=true).",
        )
    shape = tuple(getattr(image, "shape", ()))
    kind = str(getattr(image, "dtype", type(image).__name__))
    if kind != "uint8" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
        found = f"{kind} {list(shape)}" if shape else kind
        raise EnvError(
            f"an observation's image must be a uint8 array [height, width, 3], got {found}."
        )
    return observation


def user_content(prompt: str, observation: Observation) -> MessageContent:
    """What the user message says.

    Args:
        prompt: made for ``observation``.
        observation: as `seen` gave it.

    Returns:
        The prompt where there is no image. With one: the text before it, the image, the text after
        it. Its place is that of `IMAGE_MARK`; else right before the observation's text; else the
        front.

    Raises:
        EnvError: a prompt with two places for one image.

    Example:
        >>> import numpy as np
        >>> image = np.zeros((2, 3, 3), dtype=np.uint8)
        >>> observation = Observation(text="a board", anchor=0, image=image)
        >>> before, picture, after = user_content("Now: a board. Move!", observation)
        >>> before["text"], picture["image"].size, after["text"]
        ('Now: ', (3, 2), 'a board. Move!')
    """
    if observation.image is None:
        return prompt
    num_places = prompt.count(IMAGE_MARK)
    if num_places > 1:
        raise EnvError(f"a prompt must have at most one place for the image, got {num_places}.")
    before, mark, after = prompt.partition(IMAGE_MARK)
    if not mark:
        place = max(0, prompt.rfind(observation.text))  # the past may show the same text earlier
        before, after = prompt[:place], prompt[place:]
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": before},
        {"type": "image", "image": _picture(observation.image)},
        {"type": "text", "text": after},
    ]
    return [part for part in parts if part.get("text") != ""]


def picture_digest(picture: Image) -> str:
    """Stands for a picture where it is not kept: equal for equal pixels.

    Example:
        >>> import numpy as np
        >>> from PIL import Image
        >>> picture_digest(Image.fromarray(np.zeros((2, 3, 3), dtype=np.uint8)))
        '3x2 sha256:60daa3a5f7dbfa20'
    """
    digest = hashlib.sha256(picture.tobytes()).hexdigest()
    return f"{picture.width}x{picture.height} sha256:{digest[:16]}"


def _picture(image: Any) -> Image:
    """From a numpy array to what processors take."""
    from PIL import Image

    return Image.fromarray(image)
