"""Rules of ``cluster.slurm``: what can be said before a job stands in a queue."""

from __future__ import annotations

import re
from pathlib import Path

from megatron_agent.config.findings import Findings
from megatron_agent.config.slurm_settings import (
    LONGEST_SCRATCH,
    SLURM_KEY,
    SlurmSettings,
    read_slurm_settings,
)
from megatron_agent.config.values import ConfigValues

_TIME = re.compile(r"\d+|\d+:\d{1,2}(:\d{1,2})?|\d+-\d{1,2}(:\d{1,2}){0,2}|infinite", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_slurm(values: ConfigValues, findings: Findings) -> None:
    """Forms that sbatch would refuse, or that would fail on a node after hours in the queue."""
    settings = read_slurm_settings(values, findings)
    if settings is None:
        return
    if not _TIME.fullmatch(str(settings.time)):
        _problem(findings, "time", "must be a time of Slurm", settings.time, "E.g. 4:00:00.")
    if not Path(settings.scratch).is_absolute() or len(settings.scratch) > LONGEST_SCRATCH:
        rule = f"must be an absolute path of at most {LONGEST_SCRATCH} characters"
        _problem(findings, "scratch", rule, settings.scratch, "Ray's sockets lie in it: use /tmp.")
    for name in settings.environment:
        if not _VARIABLE.fullmatch(name):
            rule = "must name a variable of letters, digits and _"
            _problem(findings, "environment", rule, name, "Rename it.")
    for option in settings.extra_options:
        if not option.startswith("-"):
            rule = "must hold options of sbatch, which begin with -"
            _problem(findings, "extra_options", rule, option, "E.g. ['--constraint=h100'].")
    _check_container(settings, findings)


def _check_container(settings: SlurmSettings, findings: Findings) -> None:
    if settings.container != "none" and not settings.container_image:
        rule = f"must name an image with {SLURM_KEY}.container={settings.container}"
        _problem(findings, "container_image", rule, settings.container_image, "See docs/slurm.md.")
    for mount in settings.container_mounts:
        host, _, inside = mount.partition(":")
        if not Path(host).is_absolute() or not inside.startswith("/"):
            rule = "must hold host:container with absolute paths"
            _problem(findings, "container_mounts", rule, mount, "E.g. ['/data:/data'].")


def _problem(findings: Findings, name: str, rule: str, value: object, remedy: str) -> None:
    findings.problem(f"{SLURM_KEY}.{name}", rule, value, remedy)
