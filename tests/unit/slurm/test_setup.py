"""What cannot work is said before anything is started, with the setting to change."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.unit

MESSAGES = {
    "container": (
        {"MA_CONTAINER": "docker"},
        "MA_CONTAINER must be one of none, pyxis, apptainer, got 'docker'.",
    ),
    "auth": ({"MA_RAY_AUTH": "no"}, "MA_RAY_AUTH must be one of token, disabled, got 'no'."),
    "flag": ({"MA_REQUEUE": "maybe"}, "MA_REQUEUE must be one of true, false, got 'maybe'."),
    "number": (
        {"MA_NODES_DEADLINE_S": "5m"},
        "MA_NODES_DEADLINE_S must be a whole number, got '5m'.",
    ),
    "scratch": ({"MA_SCRATCH": "/" + "x" * 50}, "MA_SCRATCH must leave Ray's sockets short paths"),
    "root": ({"MA_ROOT": "/nowhere"}, "MA_ROOT must be the checkout, got '/nowhere'."),
    "venv": ({"MA_VENV": "/nowhere"}, "MA_VENV must be a virtual environment, got '/nowhere'"),
    "venv, but a container is meant": (
        {"MA_VENV": "/nowhere"},
        "For a container submit with 'megatron-agent launch', or export MA_CONTAINER",
    ),
    "no gpus": (
        {"MA_GPUS_NEEDED": "8", "SLURM_GPUS_ON_NODE": ""},
        "the job must have 8 GPUs on each node (trainer.n_gpus_per_node; in mode separate_async "
        "actor_rollout_ref.rollout.n_gpus_per_node too), got 0 on node1. "
        "Submit with --gpus-per-node 8",
    ),
    "gpus": ({"MA_GPUS_NEEDED": "some"}, "MA_GPUS_NEEDED must be a whole number, got 'some'."),
    "no image": ({"MA_CONTAINER": "apptainer"}, "MA_CONTAINER=apptainer needs an image."),
    "missing image": (
        {"MA_CONTAINER": "pyxis", "MA_CONTAINER_IMAGE": "/images/gone.sqsh"},
        "The container image '/images/gone.sqsh' does not exist on node1.",
    ),
    "no apptainer": (
        {"MA_CONTAINER": "apptainer", "MA_CONTAINER_IMAGE": "docker://x"},
        "apptainer is not on the PATH of node1.",
    ),
    "no pyxis": (
        {"MA_CONTAINER": "pyxis", "MA_CONTAINER_IMAGE": "x"},
        "srun on node1 has no --container-image: Pyxis is not installed.",
    ),
    "modules": ({"MA_MODULES": "cuda"}, "cluster.slurm.modules names 'cuda', and node1 has no"),
    "logs": ({"MA_LOGS": "/proc/version/logs"}, "logs cannot be written to /proc/version/logs/"),
    "interface": (
        {"MA_INTERFACE": "eth9"},
        "interface 'eth9' has no IPv4 address on node1. There are: ib0",
    ),
    "no job": ({"SLURM_JOB_ID": ""}, "this is no Slurm job."),
    "node list": ({"SLURM_JOB_NODELIST": ""}, "scontrol cannot expand the node list ''."),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_setting_that_cannot_work_is_named(job, name) -> None:
    environment, message = MESSAGES[name]
    code, output = job.run("echo trained", **environment)
    assert code == 64, output
    assert message in output
    assert "trained" not in output
    assert not job.calls("ray")
    assert not job.calls("scontrol requeue")


def test_a_node_with_fewer_gpus_than_the_first_is_named(job) -> None:
    # srun's stand-in gives each node two.
    code, output = job.run("echo trained", MA_GPUS_NEEDED="3", SLURM_GPUS_ON_NODE="3")
    assert code == 64, output
    assert "the job must have 3 GPUs on each node" in output
    assert "driver:" not in output
    assert not job.calls("scontrol requeue")


def test_gpus_that_slurm_does_not_count_are_said_by_a_variable(job) -> None:
    code, output = job.run(MA_GPUS_NEEDED="3", SLURM_GPUS_ON_NODE="", MA_NUM_GPUS="4")
    assert code == 0, output


def test_a_scratch_folder_that_cannot_be_made_is_named(job) -> None:
    code, output = job.run("echo trained", MA_SCRATCH="/proc/self")
    assert code == 64, output
    assert f"the scratch folder /proc/self/ma-{job.number} cannot be made on node1." in output


def test_apptainer_wraps_everything_that_runs_on_a_node(job) -> None:
    apptainer = job.folder / "venv/bin/apptainer"
    apptainer.write_text(
        "#!/bin/bash\n"
        'echo "apptainer $*" >>"$SHIM_LOG"\n'
        'while [[ $1 != x.sif ]]; do shift; done; shift; exec "$@"\n'
    )
    apptainer.chmod(0o755)
    image = job.folder / "x.sif"
    image.touch()
    code, output = job.run(
        "true",
        PATH=f"{apptainer.parent}:{job.environment['PATH']}",
        MA_CONTAINER="apptainer",
        MA_CONTAINER_IMAGE="x.sif",
        MA_CONTAINER_MOUNTS="/data:/data",
        MA_CONTAINER_OPTIONS="--nv",
    )
    assert code == 0, output
    calls = job.calls("apptainer")
    assert len(calls) == 4  # head, worker, the wait for both, the driver
    assert all(",/data:/data --pwd" in call and " --nv x.sif " in call for call in calls)


def test_pyxis_gets_its_options_with_every_step(job) -> None:
    image = job.folder / "x.sqsh"
    image.touch()
    code, output = job.run(
        "true",
        PATH=f"{job.folder}/venv/bin:{job.environment['PATH']}",
        SHIM_SRUN_HELP="--container-image=PATH",
        MA_CONTAINER="pyxis",
        MA_CONTAINER_IMAGE=str(image),
    )
    assert code == 0, output
    steps = job.calls("srun")
    assert len(steps) == 4
    assert all(f"--container-image={image} --container-mounts=" in step for step in steps)
