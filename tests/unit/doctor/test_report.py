"""What a report says, its exit code, and that one check cannot hide another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from megatron_agent import cli
from megatron_agent.doctor import CheckResult, Report, RunCase, examine, registry
from megatron_agent.doctor.findings import DoesNotApply, Finding, error, note, warning

pytestmark = pytest.mark.unit


def _report(*findings: Finding) -> Report:
    return Report(results=(CheckResult(check="disk", about="there is room", findings=findings),))


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([note("a", "is old", "Nothing.")], 0),
        ([note("a", "is old", "Nothing."), warning("b", "is odd", "Look.")], 1),
        ([error("a", "is gone", "Get it."), warning("b", "is odd", "Look.")], 2),
    ],
)
def test_the_worst_finding_decides_the_exit_code(findings: list[Finding], code: int) -> None:
    assert _report(*findings).exit_code() == code


def test_a_finding_is_two_lines_and_the_end_counts_them() -> None:
    text = _report(
        error("run.dir", "must be writable", "Choose another."),
        warning("GPU 0", "is busy", "End it."),
        warning("GPU 1", "is busy", "End it."),
    ).text()
    assert text.splitlines() == [
        "ERROR    disk           run.dir must be writable.",
        "                        -> Choose another.",
        "warning  disk           GPU 0 is busy.",
        "                        -> End it.",
        "warning  disk           GPU 1 is busy.",
        "                        -> End it.",
        "",
        "1 error, 2 warnings; 1 checks were run.",
    ]


@pytest.fixture
def three_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that breaks after a finding, one that does not apply, one that finds something."""

    def breaks(_case: RunCase) -> Iterator[Finding]:
        sys.stdout.write("a library says hello")
        yield warning("a", "is odd", "Look.")
        raise RuntimeError("no such attribute")

    def stays_out(_case: RunCase) -> Iterator[Finding]:
        raise DoesNotApply("the run is for a CPU")
        yield

    def finds(_case: RunCase) -> Iterator[Finding]:
        yield error("b", "is gone", "Get it.")

    made = [
        registry.Check(name=find.__name__, about="...", is_deep=find is finds, find=find)
        for find in (breaks, stays_out, finds)
    ]
    for module in ("registry", "examination"):
        monkeypatch.setattr(f"megatron_agent.doctor.{module}.all_checks", lambda: made)


@pytest.mark.usefixtures("three_checks")
def test_a_check_that_breaks_is_a_finding_and_the_others_still_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = examine(_no_case(), deep=True)
    assert capsys.readouterr().out == ""
    assert [str(finding) for finding in report.findings] == [
        "a is odd. Look.",
        "check 'breaks' could not be finished (RuntimeError: no such attribute). "
        "Leave it out with --skip breaks, and report it as a bug.",
        "b is gone. Get it.",
    ]
    assert [result.skipped for result in report.results] == ["", "the run is for a CPU", ""]


@pytest.mark.usefixtures("three_checks")
def test_checks_are_left_out_by_name_and_deep_ones_unless_asked_for() -> None:
    report = examine(_no_case(), skip=["breaks"])
    assert [result.skipped for result in report.results] == [
        "--skip",
        "the run is for a CPU",
        "needs --deep",
    ]
    assert report.exit_code() == 0


def test_an_unknown_check_to_skip_is_refused_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["doctor", "--skip", "chattemplate"]) == 2
    message = "--skip must name a check, got 'chattemplate'. Did you mean 'chat_template'?"
    assert message in capsys.readouterr().err


def test_list_names_every_check_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [check.name for check in registry.all_checks()]
    assert lines[-1].endswith("(--deep)")


def test_without_a_configuration_the_rest_is_still_examined(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = cli.main(["doctor", "run.dir=${no.such.key}", "--skip=installation"])
    text = capsys.readouterr().out
    assert code == 2
    assert "must resolve" in text
    assert "shared_memory" in text


def _no_case() -> Any:
    return object()
