"""One rank of the conversion job: every layout to every other, and Megatron's own view of it.

``test_convert.py`` starts four of these. Importing Megatron takes far longer than a conversion, so
all cases share the processes. First two ranks convert, each its models; then all ranks load the
results with verl's loader in real process groups, and save what they loaded with verl's saver; then
the two ranks convert that back.

Usage: python convert_job.py SPEC.json RANK
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("convert_job")


def main(spec_path: str, rank: int) -> None:
    spec = json.loads(Path(spec_path).read_text())
    out = Path(spec["out"])
    started = time.monotonic()
    from megatron_agent.backend import cpu

    assert cpu.register()
    import verl.models.mcore.bridge  # now, when all ranks can do it at the same time
    import verl.utils.megatron.dist_checkpointing
    import verl.utils.model  # noqa: F401

    logger.warning("imports: %.1f s", time.monotonic() - started)
    _convert_in_turn(spec, "first", rank)
    for number, case in enumerate(spec["ranks"]):
        if rank < case["num_ranks"]:
            path = out / f"{case['name']}.rank{rank}.json"
            _record(path, _load_and_save, case, rank, number)
    (out / f"ranks_done.{rank}").touch()
    for other in range(spec["num_processes"]):
        _wait_for(out / f"ranks_done.{other}")
    _convert_in_turn(spec, "last", rank)


def _convert_in_turn(spec: dict[str, Any], part: str, rank: int) -> None:
    """The conversions that this rank is to do, if any; then wait for those of the others."""
    results = [Path(spec["out"]) / f"{part}.{worker}.json" for worker in range(len(spec[part]))]
    if rank < len(results):
        _convert(spec[part][rank], results[rank])
    for path in results:
        _wait_for(path)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.2)


def _record(path: Path, work: Callable[..., Any], *args: Any) -> None:
    try:
        result = work(*args)
    except Exception:
        result = {"error": traceback.format_exc()}
    path.write_text(json.dumps(result))


def _convert(cases: list[dict[str, Any]], path: Path) -> None:
    results = {}
    for case in cases:
        started = time.monotonic()
        results[case["name"]] = _convert_one(case)
        logger.warning("%s: %.1f s", case["name"], time.monotonic() - started)
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(results))
    partial.replace(path)


def _convert_one(case: dict[str, Any]) -> dict[str, Any]:
    from megatron_agent.checkpoint.command import Mode, run
    from megatron_agent.checkpoint.layout import Layout
    from megatron_agent.checkpoint.request import Request
    from megatron_agent.checkpoint.tensors import FLOAT_DTYPES

    lines: list[str] = []
    try:
        request = Request(
            source=Path(case["source"]),
            target=Path(case["target"]),
            to=case["to"],
            layout=Layout.parse(case.get("layout", "TP1")),
            dtype=FLOAT_DTYPES[case["dtype"]] if "dtype" in case else None,
            lora=Path(case["lora"]) if "lora" in case else None,
            hf_files=Path(case["hf"]) if "hf" in case else None,
            shard_bytes=case.get("shard_bytes", 10**9),
        )
        mode = Mode(
            verify_only=case.get("verify_only", False),
            dry_run=case.get("dry_run", False),
            verdict=case.get("verdict", True),
            logits=case.get("logits", False),
            progress=False,
        )
        code = run(request, mode, lines.append)
    except Exception as error:
        return {"code": None, "error": f"{type(error).__name__}: {error}", "said": lines}
    return {"code": code, "said": lines}


def _load_and_save(case: dict[str, Any], rank: int, number: int) -> dict[str, Any]:
    """Load a conversion as verl does at the start of a run, compare it with what Megatron-Bridge
    loads from the Hugging Face folder, and save it as verl's checkpoint manager does.
    """
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from verl.utils.megatron.dist_checkpointing import save_dist_checkpointing
    from verl.utils.model import load_mcore_dist_weights

    from megatron_agent.backend.cpu.cuda_standins import cuda_means_cpu
    from megatron_agent.checkpoint.layout import Layout
    from megatron_agent.checkpoint.megatron_model import SHARDING, build_model, read_config

    layout = Layout.parse(case["layout"])
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(layout.num_ranks), LOCAL_RANK=str(rank))
    rendezvous = Path(case["saved"]).with_name(f"rendezvous_{number}")
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=layout.num_ranks
    )
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            expert_model_parallel_size=layout.ep,
        )
        hf_folder = Path(case["hf"])
        with cuda_means_cpu(), torch.no_grad():
            model_parallel_cuda_manual_seed(1)
            config = read_config(hf_folder)
            ours, bridges = (build_model(config, layout, device="cpu") for _ in range(2))
            load_mcore_dist_weights([ours], case["converted"])
            _load_with_bridge(bridges, hf_folder)
            expected = dict(bridges.named_parameters())
            differ = [
                name
                for name, parameter in ours.named_parameters()
                if not torch.equal(parameter, expected[name])
            ]
            folder = Path(case["saved"])
            folder.mkdir(exist_ok=True)
            state = {"model": ours.sharded_state_dict(metadata=dict(SHARDING))}
            save_dist_checkpointing(state, str(folder), content_metadata=dict(SHARDING))
            dist.barrier()
        return {"num_parameters": len(expected), "differ": differ}
    finally:
        gc.collect()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _load_with_bridge(model: Any, hf_folder: Path) -> None:
    from megatron.bridge import AutoBridge

    AutoBridge.from_hf_pretrained(hf_folder).load_hf_weights([model])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]))
