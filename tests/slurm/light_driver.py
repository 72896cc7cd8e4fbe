"""A stand-in for the trainer: the driver's protocol with Ray, and nothing to learn.

It takes a number of steps, each with one actor on every node, and goes on where the attempt before
stopped. Its checkpoint is the file of steps taken; the run's folder has a prompt ledger, as a
trainer writes it. Usage: ``python light_driver.py FOLDER``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import ray
from light_ledger import LightLedger  # the file beside this one
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from megatron_agent.run_lock import hold_run

EXIT_REQUEUE, EXIT_RESTART = 85, 86
STEP_S = 0.5


class Switch:
    """The signal that came first; a second one ends the process."""

    signum = 0

    @classmethod
    def handle(cls, signum: int, _frame: object) -> None:
        if cls.signum:
            os._exit(128 + signum)
        cls.signum = signum


@ray.remote(num_cpus=1, num_gpus=1)
class Rank:
    """One process on each node."""

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def step(self) -> None:
        time.sleep(STEP_S)


def main() -> int:
    """Take the steps that are left."""
    folder = Path(sys.argv[1])
    num_steps = int(os.environ.get("LIGHT_STEPS", "6"))
    hold_run(folder / "run")
    ray.init(log_to_driver=False, logging_level="WARNING")
    for signum in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(signum, Switch.handle)
    num_nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
    group = placement_group([{"CPU": 1, "GPU": 1}] * num_nodes, strategy="STRICT_SPREAD")
    ranks = [
        Rank.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=number
            )
        ).remote()
        for number in range(num_nodes)
    ]
    assert len(set(ray.get([rank.node.remote() for rank in ranks]))) == num_nodes
    steps = folder / "steps"
    taken = len(steps.read_text().splitlines()) if steps.exists() else 0
    ledger = LightLedger(folder / "run", taken)
    for step in range(taken + 1, num_steps + 1):
        ledger.begin(step)
        try:
            ray.get([rank.step.remote() for rank in ranks])
        except ray.exceptions.RayError as error:
            sys.stderr.write(f"step {step}: {type(error).__name__}\n")
            return EXIT_RESTART
        ledger.end(step)
        with steps.open("a") as file:
            file.write(f"{os.environ['MA_ATTEMPT']} {step}\n")
        if Switch.signum == signal.SIGUSR1:
            return EXIT_REQUEUE
        if Switch.signum:
            return 128 + Switch.signum
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
