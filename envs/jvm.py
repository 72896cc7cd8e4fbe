"""One Java machine in a process, for all environments that come as a JAR.

The packages start a machine of some 150 MB for every environment. Here all environments of a worker
share one; each has an object of its own in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from envs.data import EnvDataError

# The quick compiler and the collector without threads: a worker has no core to spare, and games are
# short. The step times do not differ.
_JAVA_OPTIONS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_RUNNING: dict[Path, tuple[Any, subprocess.Popen[bytes]]] = {}


def find_java() -> str:
    """The program ``java``: that of ``$JAVA_HOME``, else the one on ``PATH``.

    Raises:
        EnvDataError: there is none; says how to get one.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise EnvDataError(
            f"this environment needs Java 8 or newer: there must be a program 'java' on PATH or "
            f"below $JAVA_HOME, got PATH={os.environ.get('PATH', '')!r}. Install one, e.g. "
            f"apt-get install default-jre-headless, or conda install -c conda-forge openjdk."
        )
    return found


def java_packages(jar: Path) -> Any:
    """The classes of a JAR as py4j shows them: ``java_packages(jar).package.Class()``.

    The machine starts with the first call (about a second) and is shared by later ones. It listens
    on this machine alone, answers only to this process (by a secret), and ends with it, also after
    a ``kill -9``.

    Raises:
        EnvDataError: no Java.
        RuntimeError: it does not start.
    """
    running = _RUNNING.get(jar)
    if running is None or running[1].poll() is not None:
        running = _RUNNING[jar] = _launch(jar)
    return running[0].jvm


def _launch(jar: Path) -> tuple[Any, subprocess.Popen[bytes]]:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    java = find_java()
    try:
        port, secret, process = launch_gateway(
            classpath=str(jar),
            cwd=str(jar.parent),
            javaopts=_JAVA_OPTIONS,
            java_path=java,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
    except Exception as error:  # py4j fails by whatever the missing answer breaks first
        raise RuntimeError(
            f"{java} must start and load {jar.name}, but it did not "
            f"({type(error).__name__}: {error}). Try '{java} -version': Java 8 or newer is needed."
        ) from error
    parameters = GatewayParameters(port=port, auth_token=secret)
    return JavaGateway(gateway_parameters=parameters), process
