"""Addresses and ports."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.unit

PARTS = ("messages", "nodes")


def choose(shell, tmp_path, *, lowest=32768, listening=(), job=3, attempt=0):
    ranges, table = tmp_path / "range", tmp_path / "tcp"
    ranges.write_text(f"{lowest}\t60999\n")
    rows = [f"0: 0100007F:{port:04X} 00000000:0000 0A" for port in listening]
    table.write_text("\n".join(["sl local rem st", *rows]) + "\n")
    return shell(
        "choose_ports; echo $PORT_BASE",
        *PARTS,
        MA_PORT_RANGE_FILE=str(ranges),
        MA_TCP_TABLE=str(table),
        SLURM_JOB_ID=str(job),
        MA_ATTEMPT=str(attempt),
    )


def test_jobs_get_blocks_of_their_own_below_the_kernels_range(shell, tmp_path) -> None:
    bases = [int(choose(shell, tmp_path, job=job).stdout) for job in range(1, 6)]
    assert len(set(bases)) == 5
    assert all(base >= 10000 and base + 512 <= 32768 for base in bases)


def test_the_next_attempt_of_a_job_gets_another_block_than_jobs_beside_it(shell, tmp_path) -> None:
    bases = [int(choose(shell, tmp_path, job=job).stdout) for job in range(3, 9)]
    retried = [int(choose(shell, tmp_path, attempt=attempt).stdout) for attempt in (1, 2, 3)]
    assert len({*bases, *retried}) == 9


def test_a_block_in_which_somebody_listens_is_passed_over(shell, tmp_path) -> None:
    first = int(choose(shell, tmp_path).stdout)
    assert int(choose(shell, tmp_path, listening=[first + 2]).stdout) == first + 512


def test_ports_in_use_everywhere_are_an_error(shell, tmp_path) -> None:
    answer = choose(shell, tmp_path, lowest=10600, listening=[10000])
    assert answer.returncode == 64
    assert "every block of ports on node1 is in use." in answer.stderr


def test_a_used_port_is_found_at_both_ends_of_a_range(shell, tmp_path) -> None:
    table = tmp_path / "tcp"
    table.write_text("sl\n 0: 0100007F:2711 0:0 0A\n 1: 0100007F:2713 0:0 01\n")  # 10001 listens
    for first, last, used in (
        (10001, 10003, "10001\n"),
        (9990, 10001, "10001\n"),
        (10002, 10009, ""),
    ):
        answer = shell(f"used_port {first} {last}", *PARTS, MA_TCP_TABLE=str(table))
        assert (answer.returncode, answer.stdout) == (0, used)


def test_a_kernel_range_that_leaves_no_room_is_an_error(shell, tmp_path) -> None:
    answer = choose(shell, tmp_path, lowest=10100)
    assert answer.returncode == 64
    assert "no room for 512 ports between 10000 and 10100" in answer.stderr


def test_the_address_of_a_nodes_name_is_not_a_loopback_one(shell) -> None:
    assert shell("own_address", *PARTS, MA_INTERFACE="").stdout == "10.1.2.3\n"


def test_where_the_name_leads_to_loopback_the_first_other_address_counts(shell) -> None:
    answer = shell(
        "own_address",
        *PARTS,
        MA_INTERFACE="",
        SHIM_ADDRESSES="127.0.1.1 STREAM\\n",
        SHIM_ALL_ADDRESSES="fe80::1 127.0.0.1 10.4.5.6",
    )
    assert answer.stdout == "10.4.5.6\n"


def test_a_node_without_an_address_says_which_setting_helps(shell) -> None:
    answer = shell("own_address", *PARTS, MA_INTERFACE="", SHIM_ADDRESSES="127.0.1.1 STREAM\\n")
    assert answer.returncode == 64
    assert "no IPv4 address but loopback. Set cluster.slurm.interface." in answer.stderr


def test_a_chosen_interface_gives_the_address(shell) -> None:
    assert shell("own_address", *PARTS, MA_INTERFACE="ib0").stdout == "127.0.0.1\n"


def test_words_are_joined(shell) -> None:
    assert shell("joined , a b c", *PARTS).stdout == "a,b,c"
