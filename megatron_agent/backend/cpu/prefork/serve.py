"""A prefork server that stands before a run starts: ``python -m ...prefork.serve FOLDER``.

A run that starts its own Ray starts the server too (:mod:`launch`), unless one stands already: then
`MEGATRON_AGENT_PREFORK_SOCKET` and `MEGATRON_AGENT_PREFORK_PYTHON` in its environment name it. On a
cluster that is there before the run, whoever starts Ray on a node starts this beside it, with the
same FOLDER on every node, so that one path names the stand-in everywhere. One server also spares
many short runs on one machine their imports, as in the tests; ``FOLDER/python -m
megatron_agent.train`` forks even the driver from it. It ends, with all that was forked, when its
standard input closes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from megatron_agent.backend.cpu.environment import set_cpu_environment
from megatron_agent.backend.cpu.prefork import launch
from megatron_agent.backend.environment import set_library_defaults


def main() -> None:
    """Write the stand-in, then become the server."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    set_library_defaults()
    set_cpu_environment()
    launch.write_stand_in(folder)
    os.environ.update(launch.server_environment(folder))
    os.execv(sys.executable, [sys.executable, *launch.server_arguments(folder)])


if __name__ == "__main__":
    main()
