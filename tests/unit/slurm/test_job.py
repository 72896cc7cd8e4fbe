"""The batch shell around a driver: the ways in and out of a job."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

LISTENS = "touch $SHIM_PLAN/ready; while :; do sleep 0.05; done"
"""A driver that has set its traps and plays on."""


def test_a_job_brings_ray_up_on_every_node_and_ends_with_the_drivers_exit_code(job) -> None:
    code, output = job.run('echo "ray at $RAY_ADDRESS"; exit 7')
    assert code == 7, output
    assert "all 2 node(s) joined" in output
    assert "ray at 127.0.0.1:" in output
    head, worker = sorted(job.calls("ray["))
    assert head.startswith("ray[node1] start") and "--head" in head
    assert worker.startswith("ray[node2] start") and "--address=127.0.0.1:" in worker
    for line in (head, worker):
        assert "--num-cpus=8 --num-gpus=2" in line
        assert "--dashboard-host=127.0.0.1" in line or "--head" not in line


def test_all_workers_are_started_by_one_srun(job) -> None:
    job.nodes = ("node1", "node2", "node3", "node4")
    code, output = job.run()
    assert code == 0, output
    steps = [line for line in job.calls("srun") if "ray_node.sh worker" in line]
    assert len(steps) == 1
    assert "--nodes=3 --ntasks=3" in steps[0] and "--nodelist=node2,node3,node4" in steps[0]


def test_a_job_on_one_node_has_no_workers(job) -> None:
    job.nodes = ("node1",)
    code, output = job.run()
    assert code == 0, output
    assert len(job.calls("srun")) == 1


def test_the_head_is_where_the_batch_shell_runs(job) -> None:
    code, output = job.run(SLURMD_NODENAME="node2")
    assert code == 0, output
    assert "head node2" in output


def started(job) -> list[str]:
    """What was started on which node, in this order: Ray and prefork servers."""
    lines = (job.folder / "calls.log").read_text().splitlines()
    return [line.partition(" start")[0] for line in lines if line.startswith(("ray[", "prefork["))]


def test_on_one_node_the_prefork_server_starts_beside_ray_unless_that_was_too_much(job) -> None:
    job.nodes = ("node1",)
    job.plan("node1", "down", "up")
    wait = "until [[ $(grep -c ^prefork $SHIM_LOG) == 2 ]]; do sleep 0.05; done"
    code, output = job.run(wait, MA_PREFORK="true")
    assert code == 0, output
    # The second one must not look ready by the socket of the first.
    assert sorted(started(job)[:2]) == ["prefork[node1]", "ray[node1]"]
    assert started(job)[2:] == ["ray[node1]", "prefork[node1]"]


def test_on_nodes_that_may_share_a_machine_ray_starts_before_the_prefork_servers(job) -> None:
    wait = "until [[ $(grep -c ^prefork $SHIM_LOG) == 2 ]]; do sleep 0.05; done"
    code, output = job.run(wait, MA_PREFORK="true", SLURM_JOB_NUM_NODES="2")
    assert code == 0, output
    for node in job.nodes:
        ours = [name for name in started(job) if f"[{node}]" in name]
        assert ours == [f"ray[{node}]", f"prefork[{node}]"]


def test_the_steps_get_the_environment_whatever_sbatch_was_told(job) -> None:
    code, output = job.run('echo "export is $SLURM_EXPORT_ENV"', SLURM_EXPORT_ENV="NONE")
    assert code == 0 and "export is ALL" in output


@pytest.mark.parametrize("code", [70, 71, 72])
def test_a_driver_that_ends_with_a_code_of_the_scripts_is_not_requeued(job, code) -> None:
    ended, output = job.run(f"exit {code}")
    assert ended == code
    assert "back into the queue" not in output and not job.calls("scontrol requeue")


def test_nothing_is_left_on_the_nodes(job) -> None:
    code, output = job.run('ls -d "$MA_JOB_SCRATCH"*')
    own = f"/tmp/ma-{job.number}"
    assert code == 0 and f"{own}\n" in output and f"{own}-node2\n" in output
    assert not list(Path("/tmp").glob(f"ma-{job.number}*"))


def test_logs_are_kept_per_attempt(job) -> None:
    assert job.run()[0] == 0
    assert job.run(SLURM_RESTART_COUNT="1")[0] == 0
    assert "head on node1" in job.log("ray-node1.log")
    assert "worker on node2" in job.log("ray-node2.log", attempt=1)


def test_a_node_tries_to_join_again(job) -> None:
    job.plan("node2", "down", "up")
    code, output = job.run()
    assert code == 0, output
    assert "(try 2 of 10)" in job.log("ray-node2.log")


def test_a_head_that_does_not_start_in_time_is_tried_again(job) -> None:
    job.plan("node1", "down", "up")
    code, output = job.run()
    assert code == 0, output
    assert "(try 2 of 10)" in job.log("ray-node1.log")


def test_a_head_that_never_starts_shows_its_log_and_requeues(job) -> None:
    job.plan("node1", "down")
    code, output = job.run(MA_JOIN_ATTEMPTS="2")
    assert code == 70, output
    assert "Ray's head did not start on node1 in 2 tries." in output
    assert "| Exception: The current node timed out during startup." in output
    assert "driver:" not in output
    assert job.calls("scontrol requeue")


def test_options_that_ray_refuses_are_not_tried_again(job) -> None:
    job.plan("node2", "refuses")
    code, output = job.run()
    assert code == 64, output
    assert "| ValueError: Attempting to start raylet with 4 GPU" in output
    assert "Ray does not start with these settings on node2" in output
    assert not job.calls("scontrol requeue")


def test_a_node_that_does_not_join_is_named(job) -> None:
    job.plan("node2", "down")
    code, output = job.run(MA_JOIN_ATTEMPTS="2")
    assert code == 71, output
    assert "node2 could not join 127.0.0.1:" in output


@pytest.fixture
def sockets(job) -> Path:
    """The table of sockets of other nodes than the head's: of every block of ports the third is in
    use.
    """
    ports = range(10002, 32768, 512)
    table = job.folder / "tcp"
    table.write_text("sl\n" + "".join(f"0: 0100007F:{port:04X} 0:0 0A\n" for port in ports))
    job.environment["SHIM_TCP_ELSEWHERE"] = str(table)
    return table


@pytest.mark.usefixtures("sockets")
def test_ports_that_another_job_has_on_a_worker_node_are_told_with_the_node(job) -> None:
    code, output = job.run(MA_PORTS_PATIENCE_S="0")
    assert code == 71, output
    found = re.search(
        r"error: ports (\d+) to (\d+) must be free on node2, got .* port (\d+):", output
    )
    assert found is not None, output
    first, last, used = map(int, found.groups())
    assert (last - first, used - first) == (5, 1), "the head's own port is not the worker's"
    assert "The next attempt, or the same command again, takes other ports" in output
    assert "driver:" not in output
    assert not job.calls("ray[node2]")
    assert job.calls("scontrol requeue")


def test_ports_that_become_free_in_time_cost_nothing(job, sockets) -> None:
    job.start("true", MA_PORTS_PATIENCE_S="60")
    log = job.folder / f"logs/{job.number}/attempt-0/ray-node2.log"
    job.wait_for(lambda: log.exists() and "is in use on node2: waits" in log.read_text())
    sockets.write_text("sl\n")
    code, output = job.finish()
    assert code == 0, output


def test_the_deadline_of_the_nodes_ends_the_job(job) -> None:
    job.plan("node2", "down")
    code, output = job.run(MA_JOIN_ATTEMPTS="1000", SHIM_PATIENCE="10")
    assert code == 71, output
    assert "error: missing: node2" in output
    assert "the Ray cluster is not complete; nothing was trained." in output


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_ray_ending_on_a_node_ends_the_job_and_shows_that_nodes_log(job, node) -> None:
    job.plan(node, "dies")
    code, output = job.run("exec sleep 100")
    assert code == 72, output
    assert f"Ray ended on {node}." in output
    assert "attempt-0/ray-" in output
    assert "failure 1, of which 3 are borne: back into the queue" in output
    assert job.log(f"ray-{node}/raylet.err") == f"the raylet of {node}\n"
    assert not list(Path("/tmp").glob(f"ma-{job.number}*"))


def test_usr1_reaches_the_driver_and_85_goes_back_into_the_queue(job) -> None:
    job.start(f'trap "exit 85" USR1; {LISTENS}')
    job.signal(signal.SIGUSR1, when="ready")
    code, output = job.finish()
    assert code == 85, output
    assert "SIGUSR1: passed on to the driver" in output
    assert "stopped on request: back into the queue" in output
    assert job.calls("scontrol requeue") == [f"scontrol requeue {job.number}"]
    assert not (job.folder / f"logs/{job.number}/failures").exists()


def test_a_second_signal_reaches_the_driver_too(job) -> None:
    first = 'touch $SHIM_PLAN/first; trap "exit 130" USR1'
    job.start(f"first() {{ {first}; }}; trap first USR1; {LISTENS}")
    job.signal(signal.SIGUSR1, when="ready")
    job.signal(signal.SIGUSR1, when="first")
    code, output = job.finish()
    assert code == 130, output
    assert "again: it leaves at once" in output


def test_term_reaches_the_driver_and_does_not_requeue(job) -> None:
    job.start(f'trap "exit 143" TERM; {LISTENS}')
    job.signal(signal.SIGTERM, when="ready")
    code, output = job.finish()
    assert code == 143, output
    assert not job.calls("scontrol requeue")


def test_term_of_slurm_itself_is_not_told_to_the_driver_twice(job) -> None:
    job.start(
        f'trap "exit 143" TERM; {LISTENS}',
        SHIM_JOB_STATE="CANCELLED",
    )
    job.signal(signal.SIGTERM, when="ready")
    job.wait_for(lambda: bool(job.calls("scontrol show job")))
    os.kill(int(Path(f"/tmp/ma-{job.number}/driver.pid").read_text()), signal.SIGTERM)
    code, output = job.finish()
    assert code == 143, output
    assert "SIGTERM: Slurm ends the job (JobState=CANCELLED)" in output
    assert "passed on" not in output


def test_usr1_before_the_driver_began_requeues(job) -> None:
    job.plan("node2", "down")
    job.start("true", MA_JOIN_ATTEMPTS="1000")
    job.wait_for(lambda: bool(job.calls("ray[node2]")))
    job.signal(signal.SIGUSR1)
    code, output = job.finish()
    assert code == 85, output
    assert "SIGUSR1 before the driver began" in output
    assert job.calls("scontrol requeue")


def test_usr1_while_the_drivers_container_is_fetched_requeues(job) -> None:
    job.start("true", SHIM_IMAGE="never", **pyxis(job))
    job.signal(signal.SIGUSR1, when="fetching")
    code, output = job.finish()
    assert code == 85, output
    assert "SIGUSR1 before the driver began" in output
    assert "stopped before the driver began: back into the queue" in output
    assert job.calls("scontrol requeue")


def test_usr1_that_kills_a_driver_that_does_not_listen_yet_requeues(job) -> None:
    job.start("touch $SHIM_PLAN/ready; exec sleep 100")
    job.signal(signal.SIGUSR1, when="ready")
    code, output = job.finish()
    assert code == 85, output
    assert "the driver has ended with exit code 138" in output
    assert "SIGUSR1 came before the driver listened: it had nothing to write" in output
    assert "stopped on request: back into the queue" in output


def test_a_driver_that_usr1_kills_by_itself_is_not_requeued(job) -> None:
    code, output = job.run("kill -USR1 $$")
    assert code == 138, output
    assert not job.calls("scontrol requeue")


def test_a_container_that_does_not_start_says_why(job) -> None:
    code, output = job.run("true", SHIM_IMAGE="broken", **pyxis(job))
    assert code == 72, output
    assert "attempt-0/srun-node1.log" in output
    assert "| slurmstepd: error: pyxis: failed to import docker image" in output


def pyxis(job) -> dict[str, str]:
    """The settings of a job in a container."""
    return {
        "PATH": f"{job.folder}/venv/bin:{job.environment['PATH']}",
        "SHIM_SRUN_HELP": "--container-image=PATH",
        "MA_CONTAINER": "pyxis",
        "MA_CONTAINER_IMAGE": "docker://image",
    }


def test_term_before_the_driver_began_ends(job) -> None:
    job.plan("node2", "down")
    job.start("true", MA_JOIN_ATTEMPTS="1000")
    job.wait_for(lambda: bool(job.calls("ray[node2]")))
    job.signal(signal.SIGTERM)
    code, output = job.finish()
    assert code == 143, output
    assert not job.calls("scontrol requeue")


def test_a_failure_that_a_fresh_start_may_cure_is_counted(job) -> None:
    for failure in (1, 2):
        code, output = job.run("exit 86", MA_MAX_FAILURES="2")
        assert code == 86
        assert f"failure {failure}, of which 2 are borne: back into the queue" in output
    code, output = job.run("exit 86", MA_MAX_FAILURES="2")
    assert code == 86
    assert "failure 3 of this job: giving up (MA_MAX_FAILURES=2)" in output
    assert len(job.calls("scontrol requeue")) == 2


def test_a_job_that_is_being_cancelled_does_not_come_back(job) -> None:
    code, output = job.run("exit 85", SHIM_JOB_STATE="CANCELLED")
    assert code == 85
    assert "not requeued, because Slurm is ending the job (JobState=CANCELLED)" in output
    assert not job.calls("scontrol requeue")


def test_a_job_of_which_slurm_is_silent_at_first_is_asked_for_again(job) -> None:
    code, output = job.run("exit 85", SHIM_SILENT="2", SHIM_JOB_STATE="CANCELLED")
    assert code == 85
    assert "not requeued, because Slurm is ending the job (JobState=CANCELLED)" in output
    assert len(job.calls("scontrol show job")) == 3


def test_a_job_of_which_slurm_stays_silent_is_taken_for_running(job) -> None:
    code, output = job.run("exit 85", SHIM_SILENT="99")
    assert code == 85
    assert "it is taken for running: slurm_load_jobs error: Unable to contact" in output
    assert job.calls("scontrol requeue")


def test_term_is_passed_on_while_slurm_is_silent(job) -> None:
    job.start(
        f'trap "exit 143" TERM; {LISTENS}',
        SHIM_SILENT="99",
    )
    job.signal(signal.SIGTERM, when="ready")
    code, output = job.finish()
    assert code == 143, output
    assert "SIGTERM: passed on to the driver" in output


@pytest.mark.parametrize("blocked", ["failures.new", "failures"])
def test_a_failure_that_cannot_be_counted_is_not_requeued(job, blocked) -> None:
    logs = job.folder / f"logs/{job.number}"
    logs.mkdir(parents=True)
    if blocked == "failures":
        (logs / blocked).mkdir()
    else:
        (logs / "failures").write_text("2\n")
        (logs / blocked).symlink_to("/dev/full")
    code, output = job.run("exit 86")
    assert code == 86, output
    assert f"not requeued: failures cannot be counted in {logs}/failures" in output
    assert not job.calls("scontrol requeue")
    assert blocked == "failures" or (logs / "failures").read_text() == "2\n"


def test_requeueing_can_be_switched_off(job) -> None:
    code, output = job.run("exit 85", MA_REQUEUE="false")
    assert code == 85
    assert "not requeued (MA_REQUEUE=false). The same command goes on" in output


def test_a_site_that_refuses_to_requeue_is_quoted(job) -> None:
    code, output = job.run(
        "exit 85", SHIM_REQUEUE_ERROR="Requested operation is presently disabled"
    )
    assert code == 85
    assert "Slurm does not requeue the job: Requested operation is presently disabled" in output


def test_the_token_is_new_for_each_attempt_and_on_no_command_line_or_log(job) -> None:
    show = 'echo "$RAY_AUTH_MODE" >$SHIM_PLAN/mode; echo "$RAY_AUTH_TOKEN" >>$SHIM_PLAN/tokens'
    _, first = job.run(show)
    _, second = job.run(show)
    tokens = (job.folder / "plan/tokens").read_text().split()
    assert (job.folder / "plan/mode").read_text() == "token\n"
    assert len(set(tokens)) == 2 and all(len(token) == 64 for token in tokens)
    texts = [first, second, (job.folder / "calls.log").read_text()]
    texts += [path.read_text() for path in (job.folder / "logs").rglob("*.log")]
    assert not any(token in text for token in tokens for text in texts)


def test_without_a_token_the_log_says_so(job) -> None:
    code, output = job.run(
        'echo "mode $RAY_AUTH_MODE token ${RAY_AUTH_TOKEN-none}"', MA_RAY_AUTH="disabled"
    )
    assert code == 0
    assert "mode disabled token none" in output
    assert "Ray takes commands from everybody who reaches node1" in output


def test_a_driver_that_does_not_end_when_ray_is_gone_is_killed(job) -> None:
    job.plan("node2", "dies")
    code, output = job.run('trap "" TERM; while :; do sleep 0.05; done')
    assert code == 72, output
