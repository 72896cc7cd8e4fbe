"""What `megatron_agent.backend.ray_nodes` asks of Ray's control service."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.contract


def test_the_control_service_lists_nodes_with_names_resources_and_states() -> None:
    from ray._raylet import InnerGcsClient
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    assert hasattr(InnerGcsClient, "get_all_node_info")
    node = GcsNodeInfo(node_name="node1", resources_total={"GPU": 2.0})
    assert node.state == GcsNodeInfo.ALIVE
    assert node.resources_total.get("GPU", 0.0) == 2.0


def test_ray_start_has_the_options_that_the_batch_shell_gives_it() -> None:
    from pathlib import Path

    from ray.scripts.scripts import start

    known = {option for parameter in start.params for option in parameter.opts}
    script = Path(__file__).resolve().parents[2] / "slurm" / "lib" / "ray_node.sh"
    text = script.read_text(encoding="utf-8")
    # A bare "--" is the shell's own end of options.
    used = {word.split("=")[0] for word in text.split() if word.startswith("--")} - {"--"}
    assert used - known == set()
    assert {"--node-name", "--temp-dir", "--min-worker-port", "--dashboard-host"} <= used
