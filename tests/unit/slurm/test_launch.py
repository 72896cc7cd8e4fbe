"""`megatron-agent launch`: checked, rendered, refused or submitted."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from megatron_agent.cli import main
from megatron_agent.config import ConfigProblemsError, compose_config
from megatron_agent.config.rules.slurm import time_limit_s
from megatron_agent.errors import ConfigError
from megatron_agent.slurm import launch as launching
from megatron_agent.slurm.job_settings import export_lines, job_variables
from megatron_agent.slurm.job_settings import main as settings_main
from megatron_agent.slurm.launch import experiment_name, launch
from megatron_agent.slurm.submit import SubmitError, check_syntax, submit
from megatron_agent.train import checked_config

pytestmark = pytest.mark.unit

ON_GPUS = (
    "trainer.device=cuda",
    "actor_rollout_ref.rollout.engine_kwargs.sglang.device=cuda",
)


@pytest.fixture
def model(model_folder: Path) -> str:
    return f"actor_rollout_ref.model.path={model_folder}"


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for sbatch that keeps what it got; `refusal` makes it refuse."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def install(refusal: str = "") -> Path:
        answer = f"echo '{refusal}' >&2; exit 1" if refusal else "echo '42;cluster'"
        program = folder / "sbatch"
        program.write_text(
            f'#!/bin/bash\necho "$@" >>{folder}/arguments\nenv >{folder}/environment\n'
            f"cat >{folder}/script\n{answer}\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return folder

    return install


def test_a_dry_run_prints_a_script_that_bash_and_shellcheck_accept(model, capsys) -> None:
    assert main(["launch", "frozenlake_cpu", "--nodes", "2", "--dry-run", model]) == 0
    script = capsys.readouterr().out
    check_syntax(script)
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --signal=B:USR1@300\n#SBATCH --open-mode=append\n" in script
    assert script.rstrip().endswith("trainer.nnodes=2")
    if shutil.which("shellcheck"):
        found = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True)
        assert found.returncode == 0, found.stdout


def test_what_a_user_gives_is_quoted(model) -> None:
    script, jobs = launch(
        "configs/experiment/frozenlake_cpu.yaml",
        [
            model,
            "run.name='a b$(touch pwned)'",
            'cluster.slurm.environment.GREETING="it\'s $HOME"',
            "cluster.slurm.partition='x y'",
            "cluster.slurm.extra_options=['--constraint=a&b']",
        ],
        num_nodes=2,
        dry_run=True,
    )
    assert jobs == []
    assert "#SBATCH '--job-name=a b$(touch pwned)'" in script
    assert "#SBATCH '--partition=x y'" in script
    assert "#SBATCH --constraint=a&b" in script
    line = next(line for line in script.splitlines() if "GREETING" in line)
    shown = subprocess.run(
        ["bash", "-c", f'{line}; echo "$GREETING"'], text=True, capture_output=True
    )
    assert shown.stdout == "it's $HOME\n"


def test_all_mistakes_of_a_configuration_come_at_once() -> None:
    with pytest.raises(ConfigProblemsError) as caught:
        launch(
            "frozenlake_cpu",
            [
                "cluster.slurm.partiton=x",
                "cluster.slurm.time=soon",
                "cluster.slurm.scratch=tmp",
                "cluster.slurm.container=apptainer",
                "cluster.slurm.container_mounts=['data:/data','/a:/a,/b:/b']",
                "cluster.slurm.extra_options=[constraint]",
                "cluster.slurm.environment.bad-name=1",
                "cluster.slurm.environment.A=null",
                "cluster.slurm.container_options=['--env A=b']",
            ],
            num_nodes=1,
        )
    text = str(caught.value)
    for part in (
        "cluster.slurm.partiton is not a known key, got 'x'. Did you mean",
        "cluster.slurm.time must be a time of Slurm, got 'soon'.",
        "cluster.slurm.scratch must be an absolute path of at most 30 characters, got 'tmp'.",
        "cluster.slurm.container_image must name an image with cluster.slurm.container=apptainer",
        "cluster.slurm.container_mounts must hold host:container with absolute paths",
        "cluster.slurm.extra_options must hold options of sbatch, which begin with -",
        "cluster.slurm.environment must name a variable of letters, digits and _",
        "cluster.slurm.environment.A must be text or a number, got None.",
        "cluster.slurm.container_options must hold one word each, because blanks separate them",
        "cluster.slurm.container_mounts must hold no comma, which separates mounts",
        "actor_rollout_ref.model.path must be",
    ):
        assert part in text


@pytest.mark.parametrize(
    "key",
    ["cluster.slurm.partition", "cluster.slurm.environment.A", "cluster.slurm.logs", "run.name"],
)
def test_text_of_several_lines_is_refused(model, key) -> None:
    line = f'{key}="x\ntouch pwned"'
    with pytest.raises(ConfigProblemsError, match="must be one line"):
        launch("frozenlake_cpu", [model, line], num_nodes=1, dry_run=True)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("2", 120), ("90:30", 5430), ("4:00:00", 14400), ("1-12", 129600), ("1-2:3", 93780)],
)
def test_a_stop_needs_time_before_the_limit(model, time, seconds) -> None:
    lines = [model, f"cluster.slurm.time='{time}'"]
    late = f"cluster.slurm.signal_before_end_s={max(60, seconds - 1)}"
    launch("frozenlake_cpu", [*lines, late], num_nodes=1, dry_run=True)
    early = f"cluster.slurm.signal_before_end_s={seconds}"
    with pytest.raises(ConfigProblemsError, match=r"signal_before_end_s must be below the time"):
        launch("frozenlake_cpu", [*lines, early], num_nodes=1, dry_run=True)


@pytest.mark.parametrize("written", ["4:00:00", "30:00", "90", "010", "1:30:30.5"])
def test_a_time_without_quotes_in_a_file_is_refused(model_folder, written) -> None:
    number = OmegaConf.create(f"time: {written}").time  # as Hydra reads the file
    assert isinstance(number, int | float)

    def read_file(config: DictConfig) -> None:
        config.cluster.slurm.time = number

    with pytest.raises(
        ConfigProblemsError,
        match=rf"cluster.slurm.time must be text, got {number}. Write it in quotes, e.g.",
    ):
        checked_config(
            ["experiment=frozenlake_cpu", f"actor_rollout_ref.model.path={model_folder}"],
            amend=read_file,
        )


@pytest.mark.parametrize("written", ["1-00:00:00", "0:30:00", "'4:00:00'", "'90'"])
def test_a_time_that_yaml_leaves_as_text_arrives_as_written(written) -> None:
    assert OmegaConf.create(f"time: {written}").time == written.strip("'")


@pytest.mark.parametrize("written", ["90", "30:00", "4:00:00", "1-00:00:00"])
def test_a_time_on_the_command_line_needs_no_quotes(model, written) -> None:
    for sign in ("", "++"):
        line = f"{sign}cluster.slurm.time={written}"
        script, _ = launch("frozenlake_cpu", [model, line], num_nodes=1, dry_run=True)
        assert f"#SBATCH --time={written}\n" in script
        assert f"{line}' \\\n" in script or f"{line} \\\n" in script


def test_no_time_limit_leaves_any_time_to_stop() -> None:
    assert time_limit_s("infinite") == time_limit_s("0") == float("inf")


def test_a_wait_for_episodes_that_leaves_no_time_for_a_checkpoint_is_told(model, caplog) -> None:
    launch("frozenlake_cpu", [model, "trainer.stop_grace_s=300"], num_nodes=1, dry_run=True)
    assert "trainer.stop_grace_s=300 should be below" in caplog.text


@pytest.mark.parametrize(("option", "numbers"), [("--nodes", (0, 1)), ("--chain", (1, 0))])
def test_numbers_below_one_are_refused(option, numbers) -> None:
    with pytest.raises(ConfigError, match=rf"{option} must be >= 1, got 0. Use 1."):
        launch("demo", [], num_nodes=numbers[0], num_jobs=numbers[1])


def test_without_the_scripts_beside_the_package_launch_says_so(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(launching, "__file__", str(tmp_path / "a/b/c.py"))
    with pytest.raises(ConfigError, match="must be a checkout with a slurm/ folder"):
        launch("demo", [], num_nodes=1)


def test_a_job_is_submitted_and_its_script_kept(model, sbatch, tmp_path, capsys) -> None:
    folder = sbatch()
    logs = tmp_path / "logs"
    arguments = ["launch", "frozenlake_cpu", "--nodes=2", model, f"cluster.slurm.logs={logs}"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "Submitted job 42." in captured.err
    assert (folder / "script").read_text() == captured.out
    kept = logs / "frozenlake_gigpo.sbatch"
    assert kept.read_text() == captured.out
    assert kept.stat().st_mode & 0o077 == 0
    assert (folder / "arguments").read_text() == "--parsable\n"


def test_a_chain_is_jobs_of_one_name_of_which_one_runs(model, sbatch, tmp_path) -> None:
    folder = sbatch()
    _, jobs = launch(
        "frozenlake_cpu", [model, f"cluster.slurm.logs={tmp_path}"], num_nodes=1, num_jobs=3
    )
    assert jobs == ["42"] * 3
    assert (folder / "arguments").read_text() == "--parsable --dependency=singleton\n" * 3


def test_a_chain_that_is_refused_half_way_names_what_is_in_the_queue(
    model, sbatch, tmp_path
) -> None:
    folder = sbatch()
    (folder / "sbatch").write_text(
        f"#!/bin/bash\necho x >>{folder}/jobs\nnumber=$(wc -l <{folder}/jobs)\n"
        "((number < 3)) || { echo QOSMaxSubmitJobPerUserLimit >&2; exit 1; }\n"
        "echo $((100 + number))\n"
    )
    with pytest.raises(SubmitError, match=r"2 of 5 jobs are in the queue.*: scancel 101 102$"):
        launch("frozenlake_cpu", [model, f"cluster.slurm.logs={tmp_path}"], num_nodes=1, num_jobs=5)


def test_a_relative_path_is_looked_for_where_the_job_will(
    model_folder, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigProblemsError, match=r"actor_rollout_ref\.model\.path"):
        launch(
            "frozenlake_cpu",
            [f"actor_rollout_ref.model.path={model_folder.relative_to(tmp_path)}"],
            num_nodes=1,
            dry_run=True,
        )


def test_logs_that_cannot_be_written_are_known_before_the_job_is(model, sbatch, tmp_path) -> None:
    sbatch()
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ConfigError, match="logs must be a folder that can be written to"):
        launch("frozenlake_cpu", [model, f"cluster.slurm.logs={blocked}/logs"], num_nodes=1)


@pytest.mark.parametrize(
    ("refusal", "hint"),
    [
        ("Batch job submission failed: Invalid partition name specified", "slurm.partition"),
        ("Invalid account or account/partition combination specified", "slurm.account"),
        ("Invalid qos specification", "slurm.qos"),
        ("Requested node configuration is not available", "cluster.slurm.gpus_per_node"),
        ("Invalid generic resource (gres) specification", "cluster.slurm.gpus_per_node"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "cluster.slurm.time"),
        ("Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("something else", ""),
    ],
)
def test_a_refusal_is_quoted_with_what_to_do(sbatch, refusal, hint) -> None:
    sbatch(refusal)
    with pytest.raises(SubmitError) as caught:
        submit("#!/bin/bash\n")
    assert f"sbatch refused the job: {refusal}" in str(caught.value)
    assert hint in str(caught.value)


def test_a_machine_without_sbatch_says_where_to_go(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SubmitError, match="sbatch is not on the PATH"):
        submit("#!/bin/bash\n")


def test_variables_of_an_enclosing_job_do_not_travel(sbatch, monkeypatch) -> None:
    folder = sbatch()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert submit("#!/bin/bash\n") == "42"
    environment = (folder / "environment").read_text()
    assert "SLURM_CONF=/etc/slurm.conf" in environment
    assert "SLURM_JOB_ID" not in environment


def test_a_script_that_bash_refuses_is_our_mistake_and_told() -> None:
    with pytest.raises(SubmitError, match="bash does not accept the script"):
        check_syntax("if true; then\n")


@pytest.mark.parametrize(
    "text",
    ["demo", "experiment=demo", "configs/experiment/demo.yaml", "/x/configs/experiment/demo"],
)
def test_an_experiment_is_a_name_or_a_path(text) -> None:
    assert experiment_name(text) == "demo"


def test_a_variable_that_is_set_wins() -> None:
    (line,) = export_lines({"MA_SCRATCH": "/local disk"})
    for environment, expected in (({}, "/local disk"), ({"MA_SCRATCH": "/mine"}, "/mine")):
        shown = subprocess.run(
            ["bash", "-c", f'{line}; echo "$MA_SCRATCH"'],
            env={"PATH": "/usr/bin:/bin", **environment},
            text=True,
            capture_output=True,
        )
        assert shown.stdout.strip() == expected


def test_the_cpu_profile_makes_its_devices_up() -> None:
    config = compose_config(["experiment=frozenlake_cpu", "trainer.nnodes=2"])
    variables = job_variables(config, Path("/repo"), 2)
    assert variables["MA_NUM_GPUS"] == "1"  # two ranks on two nodes
    assert variables["MA_PREFORK"] == "true"
    assert variables["MA_LOGS"] == "/repo/runs/slurm"
    assert "MA_INTERFACE" not in variables


def test_devices_are_asked_for_where_they_are_real(model) -> None:
    lines = [model, "trainer.n_gpus_per_node=4", "cluster.data_parallel_size=2"]
    on_cpu, _ = launch("frozenlake_cpu", lines, num_nodes=1, dry_run=True)
    assert "--gpus-per-node" not in on_cpu
    on_gpus, _ = launch("frozenlake_cpu", [*lines, *ON_GPUS], num_nodes=1, dry_run=True)
    assert "#SBATCH --gpus-per-node=4\n" in on_gpus
    assert "MA_GPUS_NEEDED" not in on_cpu
    assert "export MA_GPUS_NEEDED=${MA_GPUS_NEEDED-4}\n" in on_gpus
    with pytest.raises(
        ConfigProblemsError, match=r"must be at least 4 \(trainer.n_gpus_per_node\), got 2"
    ):
        launch(
            "frozenlake_cpu",
            [*lines, *ON_GPUS, "cluster.slurm.gpus_per_node=2"],
            num_nodes=1,
            dry_run=True,
        )


def test_settings_for_a_plain_sbatch_are_printed_or_explained(capsys) -> None:
    assert settings_main(["experiment=demo", "cluster.slurm.environment.A=1"]) == 0
    printed = capsys.readouterr().out
    assert "export MA_SCRATCH=${MA_SCRATCH-/tmp}" in printed
    assert "export A=${A-1}" in printed
    assert settings_main(["experiment=demo", "cluster.slurm.ray_auth=no"]) == 2
    assert "cluster.slurm.ray_auth must be one of token, disabled" in capsys.readouterr().err
