"""Variables that every process of a run inherits, whatever its device.

Set before anything heavy is imported: libraries read them once.
"""

from __future__ import annotations

import os

LIBRARY_DEFAULTS = {
    # Ray's own default since 2.60, said before any process reads it: a forked worker has Ray's
    # configuration from before the fork. The token itself is Ray's to make.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # One warm-up poll of the tokenizers library per process; forked children would warn about it.
    "TOKENIZERS_PARALLELISM": "false",
    # verl's progress bar would run through our line per step.
    "TQDM_DISABLE": "1",
    # A run reads local files. `datasets` asks the hub at every file that it opens, and on a node
    # without a way out that waits for the name server, six seconds here, and tells nothing.
    "HF_HUB_OFFLINE": "1",
}


def set_library_defaults() -> None:
    """Set them in this process; what somebody has set already stays."""
    for name, value in LIBRARY_DEFAULTS.items():
        os.environ.setdefault(name, value)
