"""Rules of ``cluster.slurm``: what can be said before a job stands in a queue."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from megatron_agent.config.findings import Findings
from megatron_agent.config.rules.layout import gpu_pools, gpus_on_each_node, num_server_nodes
from megatron_agent.config.slurm_settings import (
    LONGEST_SCRATCH,
    SLURM_KEY,
    SlurmSettings,
    read_slurm_settings,
)
from megatron_agent.config.values import ConfigValues

_TIME = re.compile(r"\d+|\d+:\d{1,2}(:\d{1,2})?|\d+-\d{1,2}(:\d{1,2}){0,2}|infinite", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE_ENDS = frozenset("\n\r\0")


def check_slurm(values: ConfigValues, findings: Findings) -> None:
    """Forms that sbatch would refuse, or that would fail on a node after hours in the queue."""
    settings = read_slurm_settings(values, findings)
    if settings is None:
        return
    if not _TIME.fullmatch(settings.time):
        _problem(findings, "time", "must be a time of Slurm", settings.time, "E.g. 4:00:00.")
    else:
        _check_stop(settings, values, findings)
    _check_lines(settings, values, findings)
    _check_gpus(settings, values, findings)
    if not Path(settings.scratch).is_absolute() or len(settings.scratch) > LONGEST_SCRATCH:
        rule = f"must be an absolute path of at most {LONGEST_SCRATCH} characters"
        _problem(findings, "scratch", rule, settings.scratch, "Ray's sockets lie in it: use /tmp.")
    for name, value in settings.environment.items():
        if not _VARIABLE.fullmatch(str(name)):
            rule = "must name a variable of letters, digits and _"
            _problem(findings, "environment", rule, name, "Rename it.")
        if not isinstance(value, str | int | float):
            rule = "must be text or a number"
            _problem(findings, f"environment.{name}", rule, value, "Give it a value, or drop it.")
    for option in settings.extra_options:
        if not str(option).startswith("-"):
            rule = "must hold options of sbatch, which begin with -"
            _problem(findings, "extra_options", rule, option, "E.g. ['--constraint=h100'].")
    _check_container(settings, findings)


def time_limit_s(time: str) -> float:
    """A time limit of Slurm in seconds; 0 and ``infinite`` are none.

    Example:
        >>> [time_limit_s(time) for time in ("2", "90:30", "4:00:00", "1-12", "infinite")]
        [120.0, 5430.0, 14400.0, 129600.0, inf]
    """
    if time.lower() == "infinite":
        return float("inf")
    days, has_days, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not has_days and len(parts) < 3:
        parts.insert(0, 0)  # minutes, or minutes:seconds
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    total_s = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return float(total_s) or float("inf")


def _check_stop(settings: SlurmSettings, values: ConfigValues, findings: Findings) -> None:
    """There is time to stop: before the limit, and for a checkpoint after the last episodes."""
    signal_s = settings.signal_before_end_s
    if signal_s >= time_limit_s(settings.time):
        rule = f"must be below the time limit ({SLURM_KEY}.time={settings.time})"
        remedy = "Raise the limit: Slurm would stop the job as soon as it begins."
        _problem(findings, "signal_before_end_s", rule, signal_s, remedy)
    grace_s = values.number("trainer.stop_grace_s")
    if grace_s is not None and grace_s >= signal_s:
        findings.warn(
            f"trainer.stop_grace_s={grace_s:g} should be below "
            f"{SLURM_KEY}.signal_before_end_s={signal_s}: a job at its time limit may wait that "
            "long for episodes, and is ended before it has written its checkpoint."
        )


def _check_lines(settings: SlurmSettings, values: ConfigValues, findings: Findings) -> None:
    """What follows a line's end in the head of a script would be a command of its own."""
    texts = [
        (f"{SLURM_KEY}.{field.name}", text)
        for field in dataclasses.fields(settings)
        for text in _texts(getattr(settings, field.name))
    ]
    for key, text in [*texts, ("run.name", values.text("run.name") or "")]:
        if _LINE_ENDS & set(text):
            findings.problem(key, "must be one line", text, "Take the line's end out.")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from (*_texts(name), *_texts(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _check_gpus(settings: SlurmSettings, values: ConfigValues, findings: Findings) -> None:
    given, pools = settings.gpus_per_node, gpu_pools(values)
    if values.get("trainer.device") == "cpu" or given is None:
        return
    num_nodes = (values.integer("trainer.nnodes") or 0) + num_server_nodes(values)
    needed = gpus_on_each_node(pools, num_nodes)
    if given < needed:
        rule = f"must be at least {needed} ({', '.join(pools)})"
        _problem(findings, "gpus_per_node", rule, given, "Leave it null to ask for as many.")


def _check_container(settings: SlurmSettings, findings: Findings) -> None:
    if settings.container != "none" and not settings.container_image:
        rule = f"must name an image with {SLURM_KEY}.container={settings.container}"
        _problem(findings, "container_image", rule, settings.container_image, "See docs/slurm.md.")
    for option in settings.container_options:
        if re.search(r"\s", str(option)):
            rule = "must hold one word each, because blanks separate them"
            _problem(findings, "container_options", rule, option, "E.g. ['--env', 'A=b'].")
    for mount in map(str, settings.container_mounts):
        if "," in mount:
            rule = "must hold no comma, which separates mounts"
            _problem(findings, "container_mounts", rule, mount, "Name them one by one.")
        host, _, inside = mount.partition(":")
        if not Path(host).is_absolute() or not inside.startswith("/"):
            rule = "must hold host:container with absolute paths"
            _problem(findings, "container_mounts", rule, mount, "E.g. ['/data:/data'].")


def _problem(findings: Findings, name: str, rule: str, value: object, remedy: str) -> None:
    findings.problem(f"{SLURM_KEY}.{name}", rule, value, remedy)
