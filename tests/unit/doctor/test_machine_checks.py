"""Packages, disk, ports, GPUs, Slurm and network, each with a machine that is made up."""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_agent.doctor.checks import installation
from megatron_agent.doctor.findings import Finding, Severity

pytestmark = pytest.mark.unit

Find = Callable[..., list[Finding]]
Folder = Any  # of conftest.py

GPU_LINES = """0, NVIDIA H100, 81559, 4, 34, 0, Disabled
1, NVIDIA H100, 81559, 70210, 34, 0, Disabled
2, NVIDIA H100, 81559, 4, 91, 3, Disabled
3, NVIDIA A100, 40960, 4, [N/A], [N/A], Enabled
"""


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests may be a node of a cluster."""
    for name in ("RAY_ADDRESS", "SLURM_JOB_ID", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


def test_packages_that_decide_what_a_run_does_are_errors_and_others_one_warning(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = ["verl==0.0.1", "numpy==0.0.1", "absent-package==1.0", "pytest==0.0.1"]
    (tmp_path / "cpu.lock").write_text(" \\\n    --hash=sha256:00\n".join(lines))
    monkeypatch.setattr(installation, "REQUIREMENTS", tmp_path)
    numpy, verl, others = findings_of("installation")
    assert (numpy.severity, numpy.subject) == (Severity.ERROR, "numpy")
    assert f"0.0.1, got {importlib.metadata.version('verl')}" in verl.problem
    assert (others.severity, others.subject) == (Severity.WARNING, "2 packages")
    assert "absent-package (1.0 is missing), pytest (0.0.1, got " in others.problem


def test_a_local_version_is_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [SimpleNamespace(name="Torch", version="2.11.0+cpu")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    assert installation.differences({"torch": "2.11.0"}) == {}


def test_a_wheel_without_lock_files_is_noted(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installation, "REQUIREMENTS", tmp_path)
    assert [finding.severity for finding in findings_of("installation")] == [Severity.NOTE]


def test_another_python_is_an_error(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installation, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(installation, "sys", SimpleNamespace(version_info=(3, 13, 1)))
    assert "must be 3.12" in findings_of("installation")[0].problem


def test_verl_started_by_others_needs_the_entry_point(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    (finding,) = findings_of("plugin")
    assert finding.severity is Severity.NOTE
    assert "VERL_USE_EXTERNAL_MODULES" in finding.remedy


@pytest.mark.parametrize(
    ("free_bytes", "severity"),
    [(200_000, None), (130_000, Severity.WARNING), (100_000, Severity.ERROR)],
)
def test_checkpoints_kept_and_one_more_must_fit_on_the_disk(
    findings_of: Find,
    monkeypatch: pytest.MonkeyPatch,
    free_bytes: int,
    severity: Severity | None,
) -> None:
    # 320 * 8 + 2 * 8 * 8 = 2688 parameters of 4 + 12 bytes, 2 kept and one being written: 129024.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    contents = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]"
    findings = findings_of("storage", contents, "trainer.save_freq=10")
    assert [finding.severity for finding in findings] == [severity] * (severity is not None)
    assert all("2 checkpoints and one being written" in f.problem for f in findings)


@pytest.mark.parametrize(
    ("run_dir", "reason"),
    [
        ("/etc/passwd/run", "/etc/passwd: Not a directory"),
        ("/proc/nope/run", "/proc: No such file or directory"),
    ],
)
def test_a_folder_that_cannot_be_made_is_an_error_for_root_too(
    findings_of: Find, run_dir: str, reason: str
) -> None:
    (finding,) = findings_of("storage", f"run.dir={run_dir}")
    assert f"run.dir must be writable ({reason}), got {run_dir}" in str(finding)


def test_trying_to_write_leaves_nothing_behind(findings_of: Find, folder: Folder) -> None:
    before = sorted(folder.path.iterdir())
    findings_of("storage")
    assert sorted(folder.path.iterdir()) == before


def test_keeping_every_checkpoint_is_noted(findings_of: Find) -> None:
    (finding,) = findings_of("storage", "trainer.max_ckpt_to_keep=null")
    assert finding.severity is Severity.NOTE
    assert "keeps every checkpoint" in finding.problem


def test_little_shared_memory_is_a_warning(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 << 20))
    (finding,) = findings_of("shared_memory")
    assert str(finding).startswith("/dev/shm should have 2 GiB free, got 0.06")


def test_an_address_of_another_machine_is_an_error(findings_of: Find) -> None:
    (finding,) = findings_of("ports", "ray_kwargs.ray_init._node_ip_address=192.0.2.1")
    assert "must be an address of this machine" in finding.problem


def test_servers_that_the_run_names_must_answer(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{port}")
    url = f"+env.options.url=http://127.0.0.1:{port}/retrieve"
    subjects = [finding.subject for finding in findings_of("ports", url)]
    assert subjects == ["RAY_ADDRESS", "env.options.url"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert findings_of("ports", f"+env.options.url=http://127.0.0.1:{port}/x") == []


@pytest.fixture
def nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Put a program of that name first on the PATH."""

    def make(body: str) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return make


def test_faults_of_single_gpus_are_told_by_number(
    findings_of: Find, nvidia_smi: Callable[[str], None]
) -> None:
    nvidia_smi(f"cat <<'END'\n{GPU_LINES}END")
    findings = findings_of("gpus", "trainer.device=cuda", "trainer.n_gpus_per_node=8")
    assert [(finding.subject, finding.severity.name) for finding in findings] == [
        ("trainer.n_gpus_per_node", "ERROR"),
        ("GPUs", "WARNING"),
        ("GPU 1", "WARNING"),
        ("GPU 2", "ERROR"),
        ("GPU 2", "WARNING"),
        ("GPU 3", "ERROR"),
    ]
    assert "must be at most the 4 GPUs of this machine, got 8" in findings[0].problem
    assert "70210 of 81559 MiB are in use" in findings[2].problem


def test_a_driver_that_does_not_work_is_an_error(
    findings_of: Find, nvidia_smi: Callable[[str], None]
) -> None:
    nvidia_smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    (finding,) = findings_of("gpus", "trainer.device=cuda")
    assert "Driver/library version mismatch" in finding.problem


def test_a_run_for_gpus_needs_nvidia_smi(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = findings_of("gpus", "trainer.device=cuda")
    assert "must work for trainer.device=cuda (not found)" in finding.problem


def test_gpus_and_slurm_stay_out_of_a_run_on_a_cpu(is_left_out: Callable[..., str]) -> None:
    assert is_left_out("gpus") == "the run is for a CPU"
    assert is_left_out("slurm") == "not in a Slurm job"


def test_a_job_of_another_size_is_told(findings_of: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_CPUS_ON_NODE": "16",
        "SLURM_JOB_END_TIME": str(int(time.time()) + 300),
    }.items():
        monkeypatch.setenv(name, value)
    findings = findings_of(
        "slurm", "trainer.device=cuda", "trainer.nnodes=4", "trainer.n_gpus_per_node=4"
    )
    assert [(finding.subject, finding.severity.name) for finding in findings] == [
        ("trainer.nnodes", "ERROR"),
        ("trainer.n_gpus_per_node", "WARNING"),
        ("CPUs of the job", "WARNING"),
        ("time left of the job", "WARNING"),
    ]


def test_the_servers_own_nodes_are_counted(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    separate = ["trainer.v1.trainer_mode=separate_async", "trainer.nnodes=2"]
    assert findings_of("slurm", *separate, "actor_rollout_ref.rollout.nnodes=1") == []
    (finding,) = findings_of("slurm", *separate, "actor_rollout_ref.rollout.nnodes=2")
    assert "(SLURM_JOB_NUM_NODES=3), got 4" in finding.problem


def test_several_nodes_need_a_ray_cluster_and_addresses(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho localhost no-such-host.invalid\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    ray, nodes = findings_of("network", "trainer.nnodes=2")
    assert "must name the head of a Ray cluster" in ray.problem
    assert ray.severity is Severity.NOTE  # a login node
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert findings_of("network", "trainer.nnodes=2")[0].severity is Severity.ERROR
    assert nodes.problem.endswith("got none for no-such-host.invalid")


@pytest.mark.parametrize("value", ["lo", "=lo", "^docker", "eth9,lo", ""])
def test_interfaces_are_read_in_the_notation_of_nccl(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", value)
    assert len(findings_of("network")) == ("eth9" in value)


def test_deep_problems_name_the_process(
    findings_of: Find, is_left_out: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rim = types.ModuleType("megatron_agent.backend.process_check")
    rim.process_problems = lambda config, run_dir: [("Ray worker", "no agent loop.")]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, rim.__name__, rim)
    (finding,) = findings_of("registration")
    assert (finding.subject, finding.problem) == ("Ray worker", "no agent loop")
    assert is_left_out("registration", "algorithm.gamma=-1") == "the configuration has errors"
