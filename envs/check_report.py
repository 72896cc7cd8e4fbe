"""``megatron-agent env check`` as a function: every check and measurement, collected and judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.checker import contract_checks
from envs.data import EnvDataError
from envs.measure import Measurements, measure
from envs.playback import EnvContractError
from envs.spec import EnvSpec
from envs.surroundings import DeadlineError, deadline

LOW_ANCHOR_RATE = 0.2
"""Below this, most steps have no peers and step-level credit has little to compare."""
LEAK_BYTES_PER_RESET = 64 * 1024
"""Of a reset, or of a new object. Growth above this is a leak: 32 MB in 500 resets."""


@dataclass(kw_only=True)
class CheckReport:
    """What came of checking one environment."""

    name: str
    passed: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    measurements: Measurements | None = None

    @property
    def is_fine(self) -> bool:
        """Whether no promise was broken; warnings do not count."""
        return not self.problems

    def lines(self) -> Iterator[str]:
        """The report for a person."""
        yield from (f"ok       {text}" for text in self.passed)
        yield from (f"-        {text}" for text in self.not_checked)
        yield from (f"problem  {text}" for text in self.problems)
        yield from (f"warning  {text}" for text in self.warnings)
        if self.measurements is not None:
            yield from _measured_lines(self.measurements)
        verdict = "keeps the contract" if self.is_fine else "does not keep the contract"
        if self.measurements is not None and self.measurements.anchor_rate is None:
            verdict += ", as far as can be seen without a legal action"
        yield f"{self.name} {verdict}."

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        measured = self.measurements
        return {
            "name": self.name,
            "is_fine": self.is_fine,
            "passed": self.passed,
            "not_checked": self.not_checked,
            "problems": self.problems,
            "warnings": self.warnings,
            "measurements": dataclasses.asdict(measured) if measured else None,
        }


def run_check(
    spec: EnvSpec,
    *,
    num_members: int = 16,
    num_tasks: int = 3,
    num_resets: int = 500,
    options: Mapping[str, Any] | None = None,
    deadline_s: float = 300.0,
) -> CheckReport:
    """Check and measure one environment; seconds for a light one.

    Args:
        spec: the environment.
        num_members: group size, and number of random rollouts.
        num_tasks: starts tried.
        num_resets: resets made while looking for a leak.
        options: of the environment.
        deadline_s: of each check, and of the measurements; at the first that hangs all end.

    Returns:
        The report; whatever an environment raises is in it.

    Raises:
        ValueError: options that the environment refuses.
    """
    report = CheckReport(name=spec.name)
    options = spec.resolve_options(options)
    try:
        for what, check in contract_checks(
            spec, seeds=range(num_tasks), options=options, num_members=num_members
        ):
            with deadline(what, deadline_s):
                _run(what, check, report)
        if report.is_fine:
            with deadline("random play", deadline_s):
                _measure(spec, report, num_members, num_resets, options)
    except (EnvDataError, DeadlineError) as error:
        report.problems.append(str(error))
    except (Exception, SystemExit) as error:  # the data and tasks of a stranger, too
        report.problems.append(f"data and tasks: {type(error).__name__}: {error}")
    return report


def _run(what: str, check: Any, report: CheckReport) -> None:
    try:
        reason = check()
    except EnvContractError as error:
        report.problems.append(str(error))
    except (Exception, SystemExit) as error:  # the environment of a stranger may raise anything
        report.problems.append(f"{what}: {type(error).__name__}: {error}")
    else:
        if reason:
            report.not_checked.append(f"{what}: not checked, {reason}")
        else:
            report.passed.append(what)


def _measure(
    spec: EnvSpec,
    report: CheckReport,
    num_members: int,
    num_resets: int,
    options: Mapping[str, Any],
) -> None:
    start = spec.starts("train", 1, options)[0]
    try:
        measured = measure(
            spec,
            start.seed,
            start.options,
            num_rollouts=num_members,
            num_resets=num_resets,
        )
    except (Exception, SystemExit) as error:  # the environment of a stranger may raise anything
        report.problems.append(f"random play: {type(error).__name__}: {error}")
        return
    report.measurements = measured
    report.warnings.extend(measured.remarks)
    if measured.anchor_rate is None:
        report.warnings.append(
            "no legal action was tried: observations list no admissible_actions, and the EnvSpec "
            "has no sample_action, so random play only guessed a few words. Give one of them (for "
            "manager:NAME: dataclasses.replace(load_env('manager:NAME'), sample_action=...), "
            "checked as my_module:SPEC)."
        )
    elif measured.anchor_rate < LOW_ANCHOR_RATE:
        report.warnings.append(
            f"only {measured.anchor_rate:.2f} of the steps reach a state that another rollout saw "
            f"(below {LOW_ANCHOR_RATE}): step-level credit has little to compare. Leave counters, "
            f"echoes and the like out of the anchor, or group by similarity."
        )
    for leak_bytes, num_made, of_what in (
        (measured.leak_bytes_per_reset, measured.num_resets, "reset"),
        (measured.leak_bytes_per_make, measured.num_makes, "environment that is made and closed"),
    ):
        if leak_bytes > LEAK_BYTES_PER_RESET:
            report.problems.append(
                f"memory grows by {leak_bytes / 1024:.0f} kB with each {of_what} ({num_made} "
                f"made), at most {LEAK_BYTES_PER_RESET // 1024} kB are allowed."
            )


def _measured_lines(measured: Measurements) -> Iterator[str]:
    if measured.anchor_rate is None:
        yield "measured anchors repeat: not known, no legal action was tried"
    else:
        yield (
            f"measured anchors repeat: {measured.anchor_rate:.2f} of {measured.num_steps} random "
            f"steps"
        )
    yield (
        f"measured reset {_ms(measured.reset_s_p50)} (p50), {_ms(measured.reset_s_p99)} (p99); "
        f"step {_ms(measured.step_s_p50)} (p50), {_ms(measured.step_s_p99)} (p99)"
    )
    yield (
        f"measured memory {measured.instance_bytes / 2**20:.2f} MiB an instance, "
        f"{measured.leak_bytes_per_reset / 1024:.1f} kB more with each of "
        f"{measured.num_resets} resets, {measured.leak_bytes_per_make / 1024:.1f} kB with each of "
        f"{measured.num_makes} that are made and closed"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
