"""Wait until every expected node, with its devices, has joined a Ray cluster.

Run by the batch shell (``slurm/lib/cluster.sh``) while the nodes start::

    python -m megatron_agent.backend.ray_nodes --address 10.0.0.1:10000 --nodes node1,node2 \
        --gpus-per-node 8

It asks Ray's control service and starts no driver: a driver would make Ray start a worker process
for every CPU before there is anything to do.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

EXIT_HEAD = 70
EXIT_MISSING = 71
"""The batch shell's numbers for a head that does not answer and for nodes that are missing
(``slurm/lib/messages.sh``)."""

POLL_S = 0.3
CALL_TIMEOUT_S = 10.0

Nodes = Mapping[str, float]
"""Number of GPUs of each living node, by the node's name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Wait, and say on standard error who has come and who has not.

    Returns:
        0 when all are there, otherwise one of the codes above.
    """
    parser = argparse.ArgumentParser(description="Wait for the nodes of a Ray cluster.")
    parser.add_argument("--address", required=True, help="host:port of the head")
    parser.add_argument("--nodes", required=True, help="names, separated by commas")
    parser.add_argument("--gpus-per-node", type=float, default=0)
    parser.add_argument("--head-deadline-s", type=float, default=120)
    parser.add_argument("--deadline-s", type=float, default=600)
    options = parser.parse_args(argv)
    return wait_for_nodes(
        lambda: living_nodes(options.address),
        expected=options.nodes.split(","),
        num_gpus=options.gpus_per_node,
        head_deadline_s=options.head_deadline_s,
        deadline_s=options.deadline_s,
    )


def wait_for_nodes(
    ask: Callable[[], Nodes],
    *,
    expected: Sequence[str],
    num_gpus: float,
    head_deadline_s: float,
    deadline_s: float,
    poll_s: float = POLL_S,
) -> int:
    """Ask until everybody is there.

    Args:
        ask: the living nodes; raises while the head does not answer.
        expected: names of all nodes, the head's included.
        num_gpus: what each of them must offer at least.
        head_deadline_s: seconds until the head must have answered once.
        deadline_s: seconds until all must be there.
        poll_s: pause between two questions.

    Returns:
        0, `EXIT_HEAD` or `EXIT_MISSING`.
    """
    began = time.monotonic()
    seen: Nodes | None = None
    error = "no answer yet"
    while True:
        try:
            now = ask()
        except Exception as refusal:  # Ray has several kinds of error for "not there yet"
            error = str(refusal).strip().splitlines()[-1] if str(refusal).strip() else "no answer"
        else:
            _tell_who_came(seen or {}, now, expected, time.monotonic() - began)
            seen = now
            if not missing_nodes(expected, now, num_gpus):
                return 0
        waited_s = time.monotonic() - began
        if seen is None and waited_s > head_deadline_s:
            _say(f"error: Ray's head did not answer within {head_deadline_s:g} s: {error}")
            return EXIT_HEAD
        if waited_s > deadline_s:
            missing = missing_nodes(expected, seen or {}, num_gpus)
            _say(f"error: missing after {deadline_s:g} s: {'; '.join(missing)}")
            return EXIT_MISSING
        time.sleep(poll_s)


def missing_nodes(expected: Sequence[str], nodes: Nodes, num_gpus: float) -> list[str]:
    """What is still missing, in words; empty when nothing is.

    Example:
        >>> missing_nodes(["n1", "n2", "n3"], {"n1": 8.0, "n2": 7.0}, 8)
        ['n2 (7 of 8 GPUs)', 'n3']
    """
    missing = []
    for name in expected:
        if name not in nodes:
            missing.append(name)
        elif nodes[name] < num_gpus:
            missing.append(f"{name} ({nodes[name]:g} of {num_gpus:g} GPUs)")
    return missing


def living_nodes(address: str) -> Nodes:
    """Ask the control service at ``address``; a contract test watches the calls below.

    Raises:
        OSError: nobody listens there yet. Ray's client would try by itself for a minute, and fill
            the log.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=CALL_TIMEOUT_S).close()
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    reply = GcsClient(address=address).get_all_node_info(timeout=CALL_TIMEOUT_S)
    return {
        node.node_name: float(node.resources_total.get("GPU", 0.0))
        for node in reply.values()
        if node.state == GcsNodeInfo.ALIVE
    }


def _tell_who_came(before: Nodes, now: Nodes, expected: Sequence[str], waited_s: float) -> None:
    num_here = sum(name in now for name in expected)
    for name in now:
        if name not in before:
            _say(f"{name} joined after {waited_s:.1f} s ({num_here} of {len(expected)})")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
