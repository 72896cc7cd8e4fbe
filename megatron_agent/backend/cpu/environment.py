"""Variables that every process of a CPU run inherits.

Set before anything heavy is imported: libraries read them once.
"""

from __future__ import annotations

import os


def set_cpu_environment() -> None:
    """Set them in this process; what somebody has set already stays, but for what must be."""
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    # Compiling graphs with a C++ compiler costs minutes here and gains nothing at these sizes.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # Ranks and servers share the cores; threads of one would wait for threads of another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # One machine unless a launcher has named an interface; without a name Ray and gloo may pick an
    # address that is down.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
