"""One rank of verl's engine: start from a conversion, update once, save as torch_dist.

Usage: python convert_engine_job.py FOLDER RANK WORLD_SIZE
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch


def main(folder: Path, rank: int, world_size: int) -> None:
    from megatron_agent.backend import cpu

    assert cpu.register()
    import megatron_parity_job as parity  # beside this file
    import verl.workers.engine  # noqa: F401 - registers the engines
    from verl.trainer.config import CheckpointConfig
    from verl.utils.distributed import (
        destroy_global_process_group,
        initialize_global_process_group_ray,
    )
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine import EngineRegistry

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    os.environ["DIST_INIT_METHOD"] = f"file://{folder / 'rendezvous'}"
    initialize_global_process_group_ray()
    model_config = HFModelConfig(path=str(folder / "policy"))
    model_config.model_type = "language_model"
    engine = EngineRegistry.new(
        "language_model",
        "megatron",
        model_config=model_config,
        engine_config=McoreEngineConfig(
            tensor_model_parallel_size=world_size,
            pipeline_model_parallel_size=1,
            sequence_parallel=False,
            use_dist_checkpointing=True,
            dist_checkpointing_path=str(folder / "start" / "iter_0000000"),
        ),
        optimizer_config=McoreOptimizerConfig(
            lr=1e-3, lr_decay_style="constant", total_training_steps=10
        ),
        checkpoint_config=CheckpointConfig(save_contents=["model", "hf_model"]),
    )
    engine.initialize()
    start = parity._weights(engine)
    parity._train_step(engine, packed=False)
    engine.save_checkpoint(str(folder / "global_step_1" / "actor"), global_step=1)
    trained = parity._weights(engine)
    if rank == 0:
        torch.save({"start": start, "trained": trained}, folder / "weights.pt")
    destroy_global_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
