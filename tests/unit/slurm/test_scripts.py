"""The sbatch files, with stand-ins for Slurm and Ray; and all shell code under shellcheck."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REPO_ROOT = Path(__file__).resolve().parents[3]
SHIMS = Path(__file__).parent / "shims"
SCRIPTS = sorted((REPO_ROOT / "slurm").glob("*.sbatch"))
SHELL_FILES = [
    *SCRIPTS,
    *sorted((REPO_ROOT / "slurm/lib").glob("*.sh")),
    *sorted((REPO_ROOT / "tools").glob("*.sh")),
]


@pytest.fixture
def batch(job):
    """Runs an sbatch file in a shim job whose Python says what it was called with."""
    python = job.folder / "venv/bin/python"
    python.unlink()
    python.write_text(
        "#!/bin/bash\n"
        'if [[ "$*" == *job_settings* ]]; then\n'
        '    touch "$SHIM_PLAN/reading"; sleep "${SETTINGS_S:-0}"\n'
        '    echo "export MA_MAX_FAILURES=9"; exit "${SETTINGS:-0}"\n'
        "fi\n"
        # To wait for the nodes is part of the job: their scripts clean up before Ray starts.
        f'[[ "$*" != *ray_nodes* ]] || exec {SHIMS}/python "$@"\n'
        'echo "python $* MA_MAX_FAILURES=$MA_MAX_FAILURES"\n'
    )
    python.chmod(0o755)
    environment = {
        **job.environment,
        "SLURM_JOB_NODELIST": "node1,node2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_SUBMIT_DIR": str(REPO_ROOT),
    }

    def start(script: str, *arguments: str, **more: str) -> None:
        job.process = subprocess.Popen(
            ["bash", str(REPO_ROOT / "slurm" / script), *arguments],
            env={**environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    job.start_script = start
    return job


@pytest.mark.parametrize("name", ["configs/experiment/demo.yaml", "demo", "experiment=demo"])
def test_training_takes_an_experiment_by_path_or_name(batch, name) -> None:
    batch.start_script("train_gigpo.sbatch", name, "algorithm.gamma=0.9")
    code, output = batch.finish()
    assert code == 0, output
    command = "python -m megatron_agent.train experiment=demo algorithm.gamma=0.9 trainer.nnodes=2"
    assert f"{command} MA_MAX_FAILURES=9" in output


def test_training_without_an_experiment_says_how(batch) -> None:
    batch.start_script("train_gigpo.sbatch")
    code, output = batch.finish()
    assert code == 64
    assert "name an experiment: sbatch SCRIPT configs/experiment/NAME" in output


def test_a_configuration_that_cannot_be_read_ends_the_job_early(batch) -> None:
    batch.start_script("train_gigpo.sbatch", "demo", SETTINGS="2")
    code, output = batch.finish()
    assert code == 64
    assert "the configuration cannot be read, see above." in output


def test_usr1_while_the_configuration_is_read_requeues(batch) -> None:
    batch.start_script("train_gigpo.sbatch", "demo", SETTINGS_S="1")
    batch.signal(signal.SIGUSR1, when="reading")
    code, output = batch.finish()
    assert code == 85, output
    assert "SIGUSR1 before the driver began" in output
    assert "stopped before the driver began: back into the queue" in output
    assert batch.calls("scontrol requeue") and not batch.calls("ray")


def test_evaluation_trains_nothing(batch) -> None:
    batch.start_script("eval.sbatch", "demo")
    code, output = batch.finish()
    assert code == 0, output
    assert "trainer.nnodes=2 trainer.val_before_train=true trainer.val_only=true" in output
    # Optimizer states may not fit another layout.
    assert "checkpoint.load_contents=[model]" in output


def test_conversion_needs_no_ray(batch) -> None:
    batch.start_script("convert.sbatch", "a", "b", "--to", "hf")
    code, output = batch.finish()
    assert code == 0, output
    assert "python tools/convert_ckpt.py a b --to hf" in output
    assert not batch.calls("ray") and not batch.calls("srun")


def test_a_conversion_in_a_container_keeps_the_jobs_cpus(batch) -> None:
    batch.start_script(
        "convert.sbatch",
        "a",
        "b",
        PATH=f"{batch.folder}/venv/bin:{batch.environment['PATH']}",
        SHIM_SRUN_HELP="--container-image=PATH",
        MA_CONTAINER="pyxis",
        MA_CONTAINER_IMAGE="docker://image",
        SLURM_CPUS_PER_TASK="7",
    )
    code, output = batch.finish()
    assert code == 0, output
    assert "python tools/convert_ckpt.py a b" in output
    (step,) = batch.calls("srun")
    assert "--nodes=1 --ntasks=1" in step and "--mem=0 --cpus-per-task=7" in step
    assert "--container-image=docker://image" in step


def test_a_command_is_needed_for_ray_to_stand_around(batch) -> None:
    batch.start_script("with_ray.sbatch")
    code, output = batch.finish()
    assert code == 64, output
    assert "name a command: sbatch --nodes N slurm/with_ray.sbatch COMMAND" in output
    assert not batch.calls("ray")


def test_any_command_can_have_ray_around_it(batch) -> None:
    batch.start_script("with_ray.sbatch", "python", "x.py")
    code, output = batch.finish()
    assert code == 0, output
    assert "python x.py" in output


def test_a_standing_cluster_says_how_to_attach_and_keeps_its_secret(batch) -> None:
    batch.start_script("ray_cluster.sbatch")
    attach = batch.folder / f"logs/{batch.number}/attach.sh"
    batch.wait_for(attach.exists)
    batch.wait_for(lambda: "RAY_AUTH_TOKEN" in attach.read_text())
    assert attach.stat().st_mode & 0o077 == 0
    secret = attach.read_text().split("RAY_AUTH_TOKEN=")[1].split()[0]
    batch.signal(signal.SIGTERM)
    code, output = batch.finish()
    assert code == 0, output
    assert f"source {attach}" in output
    assert secret not in output
    assert not attach.exists()


def test_jobs_that_can_go_on_may_be_requeued_and_keep_their_log() -> None:
    for script in SCRIPTS:
        head = script.read_text()
        if script.name == "ray_cluster.sbatch":
            assert "#SBATCH --no-requeue" in head
        else:
            assert "#SBATCH --requeue\n#SBATCH --open-mode=append" in head, script.name


@pytest.mark.parametrize("path", SHELL_FILES, ids=lambda path: path.name)
def test_shell_code_is_clean(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck") is not None:
        found = subprocess.run(["shellcheck", path], cwd=REPO_ROOT, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    "script", sorted(path.name for path in (REPO_ROOT / "slurm").glob("*.sbatch"))
)
def test_a_script_away_from_its_checkout_says_what_is_wrong(script, tmp_path) -> None:
    for environment in ({"SLURM_SUBMIT_DIR": str(tmp_path)}, {}):
        done = subprocess.run(
            ["/bin/bash", REPO_ROOT / "slurm" / script, "x"],
            env=environment,
            cwd=tmp_path,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 64
        assert done.stderr == (
            f"error: MA_ROOT must be the checkout, got '{tmp_path}'. Call sbatch there, or export "
            "MA_ROOT.\n"
        )
