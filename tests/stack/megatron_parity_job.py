"""One rank of the parity job: run Megatron cases on the CPU and write what they computed.

``test_megatron_parity.py`` starts four of these. Importing verl and Megatron takes far longer than
any case, so each rank imports once and forks a process for each case, which makes a process group
of the first ``tp * pp * dp`` ranks; the other ranks wait for their next case. A process for each,
because gloo's threads outlive their group and wake a hundred times a second: after fifty cases in
one process they took nearly all of the machine.

Usage: python megatron_parity_job.py SPEC.json RANK
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

logger = logging.getLogger("megatron_parity_job")

SEQUENCE_LENGTHS = (20, 31, 17, 25)
PROMPT_LENGTHS = (10, 12, 8, 9)
VOCAB_SIZE = 320
LEARNING_RATE = 1e-3
NUM_STEPS = 3
PR_SET_PDEATHSIG = 1


def token_ids() -> list[torch.Tensor]:
    """Return the batch that all cases and the reference see: four token sequences."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator) for n in SEQUENCE_LENGTHS]


def loss_masks() -> list[torch.Tensor]:
    """Return for each token of the batch whether it is part of a response."""
    return [
        (torch.arange(length) >= prompt).long()
        for length, prompt in zip(SEQUENCE_LENGTHS, PROMPT_LENGTHS, strict=True)
    ]


def main(spec_path: str, rank: int) -> None:
    spec = json.loads(Path(spec_path).read_text())
    started = time.monotonic()
    from megatron_agent.backend import cpu

    assert cpu.register()
    import verl.models.mcore.bridge  # now, when all ranks can do it at the same time
    import verl.workers.engine  # noqa: F401 - with it the engines of the CPU

    logger.warning("imports: %.1f s", time.monotonic() - started)
    out = Path(spec["out"])
    for number, case in enumerate(spec["cases"]):
        world_size = case["tp"] * case["pp"] * case["dp"]
        if rank >= world_size:
            continue
        started = time.monotonic()
        process = os.fork()
        if process == 0:
            _run_case(case, rank, world_size, out / f"rendezvous_{number}")
        if os.waitpid(process, 0)[1] != 0:
            raise SystemExit(f"{case['name']} failed on rank {rank}")
        logger.warning("%s: %.1f s", case["name"], time.monotonic() - started)


def _run_case(case: dict[str, Any], rank: int, world_size: int, rendezvous: Path) -> NoReturn:
    """In a process of its own, which ends with the rank that it belongs to."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        result = _run_in_group(case, rank, world_size, rendezvous)
        torch.save(result, rendezvous.parent / f"{case['name']}.rank{rank}.pt")
    except BaseException:
        logger.exception("%s on rank %d", case["name"], rank)
        logging.shutdown()
        os._exit(1)
    logging.shutdown()
    os._exit(0)


def _run_in_group(case: dict[str, Any], rank: int, world_size: int, rendezvous: Path) -> Any:
    from megatron.core import parallel_state
    from verl.utils.distributed import (
        destroy_global_process_group,
        initialize_global_process_group_ray,
    )

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    os.environ["DIST_INIT_METHOD"] = f"file://{rendezvous}"
    initialize_global_process_group_ray()
    try:
        kinds = {
            "policy": _policy,
            "critic": _critic,
            "checkpoint": _checkpoint,
            "adapters": _adapters,
        }
        return kinds[case["kind"]](case)
    finally:
        gc.collect()
        parallel_state.destroy_model_parallel()
        destroy_global_process_group()


def _policy(case: dict[str, Any]) -> dict[str, Any]:
    """Log-probs padded and packed, also of a frozen reference policy; then three updates."""
    engine = _engine(case, "language_model")
    result: dict[str, Any] = {"sequence_parallel": bool(engine.tf_config.sequence_parallel)}
    result["padded"] = _infer(engine, packed=False)
    result["packed"] = _infer(engine, packed=True)
    if case.get("reference"):
        reference = _engine(case, "language_model", forward_only=True)
        result["reference"] = _infer(reference, packed=True)
    steps = [_train_step(engine, packed=case["packed"]) for _ in range(NUM_STEPS)]
    return result | {"steps": steps, "weights": _weights(engine), **_source(engine)}


def _critic(case: dict[str, Any]) -> dict[str, Any]:
    """Values, then three updates towards value 1 on response tokens, then values again."""
    engine = _engine(case, "value_model")
    before = _infer(engine, packed=case["packed"], key="values")
    head = getattr(engine.module[-1].module, "output_layer", None)
    head_weight = None if head is None else head.weight.detach().clone()
    steps = [_train_step(engine, packed=case["packed"], values=True) for _ in range(NUM_STEPS)]
    after = _infer(engine, packed=case["packed"], key="values")
    return {
        "before": before,
        "after": after,
        "steps": steps,
        "head": head_weight,
        **_source(engine),
    }


def _checkpoint(case: dict[str, Any]) -> dict[str, Any]:
    """Save after one update, make two more, load, and make the second one again."""
    folder = Path(case["folder"])
    engine = _engine(case, "language_model")
    _train_step(engine, packed=case["packed"])
    engine.save_checkpoint(str(folder), global_step=1)
    saved = _weights(engine)
    first = _train_step(engine, packed=case["packed"])
    _train_step(engine, packed=case["packed"])
    moved = _weights(engine)
    engine.load_checkpoint(str(folder), del_local_after_load=False)
    loaded = _weights(engine)
    again = _train_step(engine, packed=case["packed"])
    files = sorted(path.name for path in folder.iterdir())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
    return {
        "saved": saved,
        "moved": moved,
        "loaded": loaded,
        "steps": [first, again],
        "files": files,
        **_source(engine),
    }


def _adapters(case: dict[str, Any]) -> dict[str, Any]:
    """Log-probs of a model with LoRA adapters before and after three updates, and its weights with
    the adapters merged in, as the inference servers get them.
    """
    engine = _engine(case, "language_model")
    before = _infer(engine, packed=case["packed"])
    steps = [_train_step(engine, packed=case["packed"]) for _ in range(NUM_STEPS)]
    chunks = [chunk.named_parameters() for chunk in engine.module]
    trained = [name for chunk in chunks for name, p in chunk if p.requires_grad]
    return {
        "before": before,
        "after": _infer(engine, packed=case["packed"]),
        "steps": steps,
        "trained": trained,
        "weights": _weights(engine),
        **_source(engine),
    }


def _engine(case: dict[str, Any], model_type: str, *, forward_only: bool = False) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine import EngineRegistry

    model_config = HFModelConfig(path=case["model"], lora=case.get("lora", {}))
    model_config.model_type = model_type
    engine_config = McoreEngineConfig(
        tensor_model_parallel_size=case["tp"],
        pipeline_model_parallel_size=case["pp"],
        expert_model_parallel_size=case.get("ep", 1),
        expert_tensor_parallel_size=case.get("etp"),
        sequence_parallel=case.get("sp", False),
        forward_only=forward_only,
        override_transformer_config=case.get("overrides", {}),
    )
    engine = EngineRegistry.new(
        model_type,
        "megatron",
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=McoreOptimizerConfig(
            lr=LEARNING_RATE, lr_decay_style="constant", total_training_steps=10
        ),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def _batch(engine: Any, *, packed: bool) -> Any:
    """Return this data-parallel rank's rows of the batch, in micro-batches of two rows."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    # The worker that owns an engine sets this on the configuration the engine reads.
    object.__setattr__(engine.engine_config, "use_remove_padding", packed)
    rows = _rows(engine)

    def nested(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([tensors[row] for row in rows], layout=torch.jagged)

    ids, masks = token_ids(), loss_masks()
    data = TensorDict(
        {
            "input_ids": nested(ids),
            "position_ids": nested([torch.arange(len(x)) for x in ids]),
            "loss_mask": nested(masks),
            "temperature": torch.ones(len(rows)),
        },
        batch_size=len(rows),
    )
    tu.assign_non_tensor(
        data,
        use_remove_padding=packed,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=2,
        use_fused_kernels=False,
        calculate_entropy=True,
        global_batch_size=len(ids),
    )
    return data


def _rows(engine: Any) -> list[int]:
    num_rows = len(SEQUENCE_LENGTHS) // engine.get_data_parallel_size()
    first = engine.get_data_parallel_rank() * num_rows
    return list(range(first, first + num_rows))


def _source(engine: Any) -> dict[str, Any]:
    return {"has_outputs": engine.is_mp_src_rank_with_outputs(), "rows": _rows(engine)}


def _infer(engine: Any, *, packed: bool, key: str = "log_probs") -> dict[str, list[torch.Tensor]]:
    with engine.eval_mode():
        output = engine.infer_batch(_batch(engine, packed=packed), loss_function=None)
    if not engine.is_mp_src_rank_with_outputs():
        return {}
    kept = (key, "entropy") if key == "log_probs" else (key,)
    return {name: [t.clone() for t in output["model_output"][name].unbind()] for name in kept}


def _train_step(engine: Any, *, packed: bool, values: bool = False) -> dict[str, float]:
    loss_function = _value_loss if values else _policy_loss
    with engine.train_mode():
        output = engine.train_batch(_batch(engine, packed=packed), loss_function=loss_function)
    engine.lr_scheduler_step()
    if not engine.is_mp_src_rank_with_outputs():
        return {}
    return {
        "loss": sum(output["loss"]) / engine.get_data_parallel_size(),
        "grad_norm": float(output["metrics"]["grad_norm"]),
    }


def _policy_loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
    """Mean negative log-prob of the response tokens of the whole batch, scaled as verl does."""
    pairs = zip(model_output["log_probs"].unbind(), data["loss_mask"].unbind(), strict=True)
    total = sum(log_probs[:-1][mask[1:].bool()].sum() for log_probs, mask in pairs)
    return -total / data["batch_num_tokens"] * data["dp_size"], {}


def _value_loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
    pairs = zip(model_output["values"].unbind(), data["loss_mask"].unbind(), strict=True)
    total = sum(((values - 1.0) ** 2)[mask.bool()].sum() for values, mask in pairs)
    return total / data["batch_num_tokens"] * data["dp_size"], {}


def _weights(engine: Any) -> dict[str, torch.Tensor]:
    """Return the weights as the inference servers would get them."""
    weights = {name: weight.clone() for name, weight in engine.get_per_tensor_param()[0]}
    return weights if dist.get_rank() == 0 else {}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]))
