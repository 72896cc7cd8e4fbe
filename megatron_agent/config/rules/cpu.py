"""Rules of a machine without a GPU: what cannot run there, and how many ranks it can hold."""

from __future__ import annotations

from megatron_agent.config.findings import Findings
from megatron_agent.config.rules.layout import CP_KEY, gpu_pools
from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import ConfigError

RANK_MEMORY_BYTES = 900 * 10**6
"""What a rank of the smallest model takes, its server left out."""
CPUS_PER_RANK = 3
"""What verl reserves in Ray for a rank (``ResourcePoolManager.max_colocate_count``)."""
NUM_OTHER_CPUS = 2
"""TransferQueue's controller, and one for actors that need a CPU only while they start."""

SERVER_DEVICE_KEY = "actor_rollout_ref.rollout.engine_kwargs.sglang.device"
RAY_KEY = "ray_kwargs.ray_init"
STORAGE_KEY = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


def check_cpu(values: ConfigValues, findings: Findings) -> None:
    """Trainer and servers are on the same device, and a CPU machine holds all ranks."""
    device = values.text("trainer.device")
    if device == "cuda" and values.text(SERVER_DEVICE_KEY) == "cpu":
        findings.problem(
            "trainer.device",
            "must be cpu with cluster=cpu, whose servers run on the CPU",
            device,
            "Choose a cluster with GPUs, e.g. cluster=1x8_h100.",
        )
    if device != "cpu":
        return
    context = values.integer(CP_KEY)
    if context is not None and context > 1:
        findings.problem(
            CP_KEY,
            "must be 1 on a CPU: attention over parts of a row needs a GPU's kernels",
            context,
            "Use 1.",
        )
    num_ranks = sum(per_node for _, per_node in gpu_pools(values).values())
    if values.get(f"{RAY_KEY}.address") in (None, "local"):  # else the ranks are elsewhere
        _check_logical_cpus(values, num_ranks, findings)
        _check_memory(num_ranks, findings)


def _check_logical_cpus(values: ConfigValues, num_ranks: int, findings: Findings) -> None:
    """Or Ray would wait for CPUs that never come, without a word."""
    num_cpus = values.integer(f"{RAY_KEY}.num_cpus")
    needed = CPUS_PER_RANK * num_ranks + (values.integer(STORAGE_KEY) or 0) + NUM_OTHER_CPUS
    if num_cpus is not None and num_cpus < needed:
        findings.problem(
            f"{RAY_KEY}.num_cpus",
            f"must be >= {needed} for {num_ranks} ranks, each of which reserves {CPUS_PER_RANK}",
            num_cpus,
            "Leave it out: it is only a number, the machine may have fewer.",
        )


def _check_memory(num_ranks: int, findings: Findings) -> None:
    import psutil  # type: ignore[import-untyped]

    total_bytes = psutil.virtual_memory().total
    limit = max(int(total_bytes // RANK_MEMORY_BYTES), 1)
    if num_ranks <= limit:
        return
    findings.problem_here(
        ConfigError(
            "trainer.n_gpus_per_node",
            f"(ranks on one machine) must be at most {limit}: this one has "
            f"{total_bytes / 1e9:.1f} GB of memory, and a rank takes "
            f"{RANK_MEMORY_BYTES / 1e9:.1f} GB or more",
            num_ranks,
            "Lower cluster.data_parallel_size or the parallel sizes.",
        )
    )
