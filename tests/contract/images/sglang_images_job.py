"""Cut a picture up as SGLang's server does, with its own processor for Qwen2.5-VL.

A process of its own, because SGLang keeps much in globals. Nothing is served, no model is loaded.

Usage: python sglang_images_job.py POLICY_FOLDER PROMPT.json PICTURE.png OUT.npz
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

from megatron_agent.backend.cpu import sglang_hooks


def main(folder: str, prompt_file: str, picture_file: str, out_file: str) -> None:
    """Write ``input_ids``, ``positions`` and ``pixel_values``."""
    sglang_hooks.install()
    from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor
    from transformers import AutoConfig, AutoProcessor

    settings = SimpleNamespace(
        mm_process_config={},
        skip_tokenizer_init=True,  # as verl starts it
        disable_fast_image_processor=False,
        keep_mm_feature_on_device=False,
    )
    processor = QwenVLImageProcessor(
        AutoConfig.from_pretrained(folder), settings, AutoProcessor.from_pretrained(folder), None
    )
    answer = asyncio.run(
        processor.process_mm_data_async(
            [Image.open(picture_file)],
            json.loads(Path(prompt_file).read_text()),
            SimpleNamespace(video_data=None, audio_data=None, rid="r"),
        )
    )
    (item,) = answer.mm_items
    np.savez(
        out_file,
        input_ids=np.array(answer.input_ids),
        positions=answer.mrope_positions.numpy(),
        pixel_values=item.feature.numpy(),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
