"""What SGLang's child processes run on a CPU: hooks first, then SGLang's own function.

A spawned child finds its target by importing this module, so the hooks below are in place before
anything of SGLang is imported.
"""

from __future__ import annotations

from typing import Any

from megatron_agent.backend.cpu import sglang_hooks

sglang_hooks.install()


def run_scheduler_process(*args: Any, **kwargs: Any) -> Any:
    """SGLang's scheduler (the process that holds the model)."""
    from sglang.srt.managers.scheduler import run_scheduler_process as original

    return original(*args, **kwargs)


def run_detokenizer_process(*args: Any, **kwargs: Any) -> Any:
    """SGLang's detokenizer."""
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process as original

    return original(*args, **kwargs)
