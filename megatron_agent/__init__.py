"""Train language-model agents by step-level reinforcement learning on stock verl.

The records of a training step, for code that reads runs or extends them:

EnvTask       hop 1, which task an episode is of
Turn          hops 3-5, one step of an episode; Generation is what was sampled in it
Episode       one session of a task, finished
StepSample    hop 6, one training row
MegatronAgentError
              base of all errors raised on purpose (`megatron_agent.errors`)

Everything else has its own door: `megatron_agent.config`, `megatron_agent.credit`, and `envs` for
environments. Importing this package loads nothing; names are looked up when used.

Example:
    >>> import megatron_agent
    >>> megatron_agent.Episode.__module__
    'megatron_agent.types'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatron_agent.errors import MegatronAgentError
    from megatron_agent.tasks import EnvTask
    from megatron_agent.types import Episode, Generation, StepSample, Turn

__version__ = "0.1.0"

__all__ = [
    "EnvTask",
    "Episode",
    "Generation",
    "MegatronAgentError",
    "StepSample",
    "Turn",
    "__version__",
]

_MODULES = {
    "EnvTask": "tasks",
    "Episode": "types",
    "Generation": "types",
    "MegatronAgentError": "errors",
    "StepSample": "types",
    "Turn": "types",
}
"""Where the public names live. Worker processes import this package and must start light."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
