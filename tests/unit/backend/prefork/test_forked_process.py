"""A process forked by the server is, to whoever started it, the ``python`` that was asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_the_worker_has_the_servers_imports_and_is_another_process(start):
    code = "import sys, os; print('decimal' in sys.modules, os.getpid(), os.getppid())"
    process = start("-c", code)
    status, out, err = finish(process)
    assert (status, err) == (0, "")
    loaded, pid, parent = out.split()
    assert loaded == "True"
    # Forked by the server, so neither the client itself nor its child.
    assert process.pid not in (int(pid), int(parent))


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("raise SystemExit", 0),
        ("import os; os._exit(255)", 255),
        ("raise ValueError('on purpose')", 1),
    ],
)
def test_the_exit_code_is_the_workers(start, program, status):
    assert finish(start("-c", program))[0] == status


def test_an_exception_ends_with_a_traceback_on_stderr(start):
    _, _, err = finish(start("-c", "raise ValueError('on purpose')"))
    assert err.startswith("Traceback")
    assert err.endswith("ValueError: on purpose\n")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_worker_that_dies_of_a_signal_looks_like_that_from_outside(start, signum):
    status, _, _ = finish(start("-c", f"import os; os.kill(os.getpid(), {int(signum)})"))
    assert status == -signum


def send_when_forwarding(process: subprocess.Popen[str], signum: signal.Signals) -> None:
    """The worker may be up a moment before its client has set its handlers."""
    status = Path(f"/proc/{process.pid}/status")
    deadline = time.monotonic() + 30
    while True:
        caught = next(line for line in status.read_text().splitlines() if "SigCgt" in line)
        if int(caught.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1:
            break
        assert time.monotonic() < deadline, "the client never set its handlers"
        time.sleep(0.01)
    process.send_signal(signum)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_to_the_client_reaches_the_worker(start, signum):
    # os.write: a print in a handler may find another print under way.
    code = f"""
import os, signal, time
def handler(signum, _frame):
    os.write(1, b"got %d" % signum)
    os._exit(3)
signal.signal({int(signum)}, handler)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.1)
"""
    process = start("-c", code)
    assert process.stdout.readline() == "ready\n"
    send_when_forwarding(process, signum)
    assert finish(process)[:2] == (3, f"got {int(signum)}")


def test_an_interrupt_is_a_keyboard_interrupt(start):
    code = """
import os, time
try:
    os.write(1, b"ready\\n")
    while True:
        time.sleep(0.1)  # a signal just before one long sleep would come after it
except KeyboardInterrupt:
    os.write(1, b"interrupted")
"""
    process = start("-c", code)
    process.stdout.readline()
    send_when_forwarding(process, signal.SIGINT)
    assert finish(process)[:2] == (0, "interrupted")


def test_a_signal_that_the_worker_does_not_handle_ends_both(start, wait_until_gone):
    process = start("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    worker = int(process.stdout.readline())
    send_when_forwarding(process, signal.SIGTERM)
    assert finish(process)[0] == -signal.SIGTERM
    wait_until_gone(worker)


def test_a_killed_client_takes_its_worker_along(start, wait_until_gone):
    process = start("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    worker = int(process.stdout.readline())
    process.kill()
    wait_until_gone(worker)


def test_working_directory_and_environment_are_the_clients(start, tmp_path):
    code = "import os, json; print(json.dumps([os.getcwd(), os.environ.get('ONLY_HERE'), "
    code += "os.environ.get('HOME')]))"
    env = {"ONLY_HERE": "yes = 'ümlaut'"}
    _, out, _ = finish(start("-c", code, env=env, cwd=tmp_path))
    assert json.loads(out) == [str(tmp_path), "yes = 'ümlaut'", os.environ.get("HOME")]


def test_the_environment_of_one_worker_does_not_reach_the_next(start):
    finish(start("-c", "pass", env={"ONLY_ONCE": "1"}))
    _, out, _ = finish(start("-c", "import os; print(os.environ.get('ONLY_ONCE'))"))
    assert out == "None\n"


def test_standard_input_is_passed(start):
    process = start("-c", "import sys; print(sys.stdin.read().upper())")
    out, _ = process.communicate("spoken", timeout=60)
    assert out == "SPOKEN\n"


def test_inherited_descriptors_keep_their_numbers(start):
    read_end, write_end = os.pipe()
    try:
        code = f"import os; os.write({write_end}, b'through the pipe')"
        assert finish(start("-c", code, pass_fds=[write_end]))[0] == 0
        os.close(write_end)
        write_end = -1
        # End of file at once: neither client nor server still holds the other end.
        assert os.read(read_end, 100) == b"through the pipe"
        assert os.read(read_end, 100) == b""
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def test_two_descriptors_that_trade_places_do_not_overwrite_each_other(start):
    pipes = [os.pipe() for _ in range(4)]
    ends = [write_end for _, write_end in pipes]
    code = f"import os; [os.write(fd, str(fd).encode()) for fd in {ends}]"
    finish(start("-c", code, pass_fds=ends))
    for read_end, write_end in pipes:
        assert os.read(read_end, 100) == str(write_end).encode()
        os.close(read_end)
        os.close(write_end)


def test_a_pipe_closed_by_the_worker_is_closed_although_the_client_lives(start):
    process = start("-c", "import os, time; os.close(1); time.sleep(60)")
    assert process.stdout.read() == ""
    assert process.poll() is None


def test_a_script_gets_its_arguments_and_its_folder_on_the_path(start, tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, beside\nprint(__name__, __file__, sys.argv[1:], beside.WORD)\n"
        "import __main__; print(__main__.beside is beside)\n"
    )
    status, out, err = finish(start("-u", "-W", "ignore", str(script), "-c", "x"))
    assert (status, err) == (0, "")
    assert out == f"__main__ {script} ['-c', 'x'] found\nTrue\n"


def test_a_module_runs_as_with_dash_m(start, tmp_path):
    (tmp_path / "data.json").write_text('{"a": 1}')
    _, out, _ = finish(start("-m", "json.tool", "--compact", str(tmp_path / "data.json")))
    assert out == '{"a":1}\n'


def test_nothing_to_run_is_an_error_instead_of_a_prompt(start):
    status, _, err = finish(start("-u"))
    assert status == 1
    assert "prefork: nothing to run" in err


def test_two_workers_draw_different_random_numbers(start):
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    first, second = (finish(start("-c", code))[1].split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_each_worker_leads_a_process_group_of_its_own(start):
    # Ray kills the group of a worker that died: that must not be the server's.
    out = finish(start("-c", "import os; print(os.getpid(), os.getpgid(0))"))[1]
    pid, group = out.split()
    assert pid == group


def test_workers_run_beside_each_other(start):
    processes = [start("-c", "print(input(), flush=True)") for _ in range(5)]
    for process in reversed(processes):
        out, _ = process.communicate(f"{process.pid}\n", timeout=60)
        assert out == f"{process.pid}\n"


def test_multiprocessing_spawns_through_the_server(server, tmp_path):
    script = tmp_path / "spawner.py"
    script.write_text(
        """
import multiprocessing, os, sys

def child(queue, event):
    event.wait()
    queue.put((os.getppid(), "decimal" in sys.modules, multiprocessing.parent_process().pid))
    sys.exit(5)

if __name__ == "__main__":
    multiprocessing.set_executable(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    queue, event = context.Queue(), context.Event()
    process = context.Process(target=child, args=(queue, event))
    process.start()
    event.set()
    parent, preloaded, named_parent = queue.get(timeout=60)
    process.join()
    print(parent != os.getpid(), preloaded, named_parent == os.getpid(), process.exitcode)

    stuck = context.Process(target=child, args=(queue, context.Event()))
    stuck.start()
    stuck.terminate()
    stuck.join()
    print(stuck.exitcode)
"""
    )
    done = subprocess.run(
        [sys.executable, str(script), str(server.python)],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["True True True 5", str(-signal.SIGTERM)], done.stderr
    assert done.stderr == ""


def test_without_a_server_the_stand_in_is_a_plain_python(server, tmp_path: Path):
    code = "import sys, os; print('decimal' in sys.modules, os.getpid(), sys.argv[1:])"
    for socket_path in (None, str(tmp_path / "nobody")):
        env = {**os.environ, **server.environment}
        env.pop("MEGATRON_AGENT_PREFORK_SOCKET")
        if socket_path is not None:
            env["MEGATRON_AGENT_PREFORK_SOCKET"] = socket_path
        process = subprocess.Popen(
            [str(server.python), "-c", code, "-x"], env=env, stdout=subprocess.PIPE, text=True
        )
        assert finish(process)[:2] == (0, f"False {process.pid} ['-x']\n")


def test_modules_are_found_where_the_clients_path_says(start, tmp_path):
    (tmp_path / "only_here.py").write_text("print('found')")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    assert finish(start("-c", "import only_here", env=env)) == (0, "found\n", "")
