"""The way to sbatch and bash, with refusals in plain words."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from megatron_agent.errors import MegatronAgentError

_HINTS: tuple[tuple[str, str], ...] = (
    ("invalid partition", "Set cluster.slurm.partition; `sinfo` lists them."),
    (
        "invalid account",
        "Set cluster.slurm.account; `sacctmgr show associations user=$USER` lists yours.",
    ),
    ("invalid qos", "Set cluster.slurm.qos; `sacctmgr show qos` lists them."),
    (
        "requested node configuration is not available",
        "No node has as many GPUs, CPUs or as much memory: `sinfo -o '%P %D %c %m %G'` shows what "
        "there is; see cluster.slurm.gpus_per_node and cpus_per_node.",
    ),
    ("invalid generic resource", "Set cluster.slurm.gpus_per_node; `sinfo -o '%P %G'` lists GPUs."),
    ("time limit", "Set cluster.slurm.time; `sinfo -o '%P %l'` lists limits."),
    ("unable to contact slurm controller", "The controller does not answer; `scontrol ping`."),
)


class SubmitError(MegatronAgentError, RuntimeError):
    """sbatch is missing, or refused the job."""


def check_syntax(script: str) -> None:
    """Let bash read the script without running it.

    Raises:
        SubmitError: bash does not accept it.
    """
    found = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    if found.returncode:
        raise SubmitError(f"bash does not accept the script:\n{found.stderr.strip()}")


def submit(script: str, options: Sequence[str] = ()) -> str:
    """Hand a script to sbatch.

    Args:
        script: the text of the sbatch file.
        options: further options of sbatch.

    Returns:
        The number of the job.

    Raises:
        SubmitError: with sbatch's own words and what to do about them.
    """
    if shutil.which("sbatch") is None:
        raise SubmitError(
            "sbatch is not on the PATH: this machine cannot submit to Slurm. Run the command on a "
            "login node, or add --dry-run and take the script there."
        )
    # A job inherits the environment; what belongs to this shell's own job, if it is in one, must
    # not go along.
    environment = {name: value for name, value in os.environ.items() if not _is_of_a_job(name)}
    answer = subprocess.run(
        ["sbatch", "--parsable", *options],
        input=script,
        text=True,
        capture_output=True,
        env=environment,
    )
    if answer.returncode:
        words = " ".join(answer.stderr.split()) or f"exit code {answer.returncode}"
        raise SubmitError(f"sbatch refused the job: {words}{_hint(words)}")
    return answer.stdout.strip().split(";")[0]


def _hint(words: str) -> str:
    lower = words.lower()
    return next((f"\n{hint}" for sign, hint in _HINTS if sign in lower), "")


def _is_of_a_job(name: str) -> bool:
    """Variables that Slurm sets in a job. ``SLURM_CONF`` and the like are the user's."""
    return name.startswith(("SLURM_JOB", "SLURM_STEP", "SLURM_NTASKS", "SLURM_CPUS", "SLURM_MEM"))
