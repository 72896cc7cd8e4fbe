"""Convert checkpoints between Hugging Face and Megatron, and check the result.

Examples::

    python tools/convert_ckpt.py models/Qwen3-8B qwen3-8b-megatron --layout TP4xPP2
    python tools/convert_ckpt.py runs/demo/checkpoints/global_step_12 policy --to hf
    python tools/convert_ckpt.py models/Qwen3-8B policy --to hf --lora adapter --dtype bfloat16
    python tools/convert_ckpt.py models/Qwen3-8B qwen3-8b-megatron --verify-only

It works on the CPU, reads and writes one parameter at a time, and goes on where it was interrupted.
The target appears under its name when it is whole and its verdict is "pass"; else the exit status
is 1. Input that cannot work gives one line on stderr and exit status 2.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Before torch: a busy GPU is not touched, and memory comes in large pages, five times as fast.
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "THP_MEM_ALLOC_ENABLE": "1"}

from megatron_agent.checkpoint.command import main

if __name__ == "__main__":
    # Megatron says at length what is not installed.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.exit(main())
