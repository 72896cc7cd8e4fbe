"""Actor update and log-probabilities on one device, as a training step asks for them.

    python benchmarks/gpu_update.py                      # 0.5B, 1.5B and 7B shapes on a GPU
    python benchmarks/gpu_update.py --shapes tiny        # seconds on a CPU

Needs PyTorch and the wheels of verl, megatron-core and megatron-bridge: neither SGLang nor
Transformer Engine, and no weights (they are random). It runs verl's Megatron engine with this
package's plain PyTorch layers on sequences as agents write them (``--lengths``), padded and packed.

Tokens are real ones: padding is work without result. FLOPs are those of the matrix products that a
real token needs (no recomputation), and MFU is their rate as a share of the rate of one large
bfloat16 product, measured here first. A shape that does not fit is cut to as many layers as do, and
says so. Cases that ``--limit-s`` leaves no time for are named and left out.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_update_engine import (
    Shape,
    device_name,
    forget,
    log_probs,
    make_batch,
    make_engine,
    matrix_rate,
    peak_bytes,
    process_group,
    reset_peak,
    seconds_of,
    set_environment,
    the_device,
    update,
)

GIB = 1 << 30
TRAINED_BYTES = 18
"""A parameter's share of memory: weight 2, gradient 4, master copy and Adam's moments 12."""
MEMORY_FOR_STATE = 0.65
"""Share of a device that weights and optimizer may take; the rest is for activations and logits."""


SHAPES = {
    "tiny": Shape(layers=2, hidden=64, ffn=128, heads=4, kv_heads=2, vocab=512),
    "0.5B": Shape(layers=24, hidden=896, ffn=4864, heads=14, kv_heads=2, vocab=151936, tied=True),
    "1.5B": Shape(layers=28, hidden=1536, ffn=8960, heads=12, kv_heads=2, vocab=151936, tied=True),
    "7B": Shape(layers=28, hidden=3584, ffn=18944, heads=28, kv_heads=4, vocab=152064),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    model: str
    batch: str
    phase: str
    tokens_per_s: float
    tflops: float
    mfu: float
    peak_gib: float

    def line(self, predicted: str) -> str:
        """As markdown."""
        return (
            f"| {self.model} | {self.batch} | {self.phase} | {self.tokens_per_s:,.0f} | "
            f"{self.tflops:.4g} | {self.mfu:.1%} | {self.peak_gib:.2f} | {predicted} |"
        )


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.5B", "1.5B", "7B"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[380, 620, 900, 1400, 2048])
    parser.add_argument("--rows", type=int, default=32, help="of a batch; lengths take turns")
    parser.add_argument("--micro-batch", type=int, default=8192, help="tokens at once, at most")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=330)
    args = parser.parse_args()

    started_s = time.monotonic()
    set_environment()
    device = the_device()
    rate = matrix_rate(device)
    print(f"{device_name(device)}: {rate / 1e12:.4g} TFLOP/s in one product of large matrices")
    lengths = [args.lengths[row % len(args.lengths)] for row in range(args.rows)]
    print(f"{len(lengths)} rows of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all")
    print("| model | batch | phase | tokens/s | TFLOP/s | MFU | peak GiB | predicted GiB |")
    print("|---|---|---|---|---|---|---|---|")
    left_out = []
    with process_group(device):
        for name in args.shapes:
            # The largest shape comes last and takes as long as all before it.
            if time.monotonic() - started_s > args.limit_s / 2:
                left_out.append(name)
                continue
            shape, label = _fitted(name, device)
            with tempfile.TemporaryDirectory() as folder:
                engine = make_engine(shape, Path(folder), device)
                for packed in (False, True):
                    for row in _measure(engine, shape, label, lengths, args, packed, rate, device):
                        print(row.line(_predicted(shape, row.phase, lengths, args)), flush=True)
                forget(engine)
                del engine
                gc.collect()
    if left_out:
        print(f"Left out for want of time (--limit-s {args.limit_s:g}): {'; '.join(left_out)}")
    return 0


def _measure(
    engine: Any,
    shape: Shape,
    label: str,
    lengths: list[int],
    args: argparse.Namespace,
    packed: bool,
    rate: float,
    device: Any,
) -> Iterator[Row]:
    """Log-probabilities, then the update; a first call of each is not counted."""
    tokens = max(args.micro_batch, *lengths)

    def batch(*, entropy: bool) -> Any:
        return make_batch(engine, shape, lengths, tokens, packed=packed, entropy=entropy)

    phases: tuple[tuple[str, int, Callable[[], None]], ...] = (
        # verl asks for the entropy with the log-probabilities, and not in the update.
        ("log-prob", 1, lambda: log_probs(engine, batch(entropy=True))),
        ("update", 3, lambda: update(engine, batch(entropy=False))),
    )
    for phase, passes, run in phases:
        run()
        reset_peak(device)
        seconds = statistics.median(seconds_of(run, device) for _ in range(args.repeats))
        flops = passes * shape.forward_flops(lengths) / seconds
        yield Row(
            model=label,
            batch="packed" if packed else "padded",
            phase=phase,
            tokens_per_s=sum(lengths) / seconds,
            tflops=flops / 1e12,
            mfu=flops / rate,
            peak_gib=peak_bytes(device) / GIB,
        )


def _fitted(name: str, device: Any) -> tuple[Shape, str]:
    """The shape with as many layers as fit, and what to call it."""
    import torch

    shape = SHAPES[name]
    if device.type != "cuda":
        return shape, name
    budget = MEMORY_FOR_STATE * torch.cuda.get_device_properties(device).total_memory
    fixed = shape.parameters - shape.layers * shape.layer_parameters
    num_layers = int((budget / TRAINED_BYTES - fixed) / shape.layer_parameters)
    if num_layers >= shape.layers:
        return shape, name
    label = f"{name} ({num_layers} of {shape.layers} layers)"
    return replace(shape, layers=num_layers), label


def _predicted(shape: Shape, phase: str, lengths: list[int], args: argparse.Namespace) -> str:
    """GiB that ``megatron-agent plan`` expects in this phase, on a device that is the trainer's.

    What it adds for the CUDA context and for libraries is left out: the allocator that the measured
    peak comes from does not see it either.
    """
    try:
        from megatron_agent.plan.layout import Layout
        from megatron_agent.plan.memory import plan_memory
        from megatron_agent.plan.records import Cluster, Gpu, Job, Rollout, Training, Workload
        from megatron_agent.plan.shapes import ModelShape
    except ImportError:  # an installation without the planner
        return "-"
    num_tokens = max(args.micro_batch, *lengths)
    # Of the machine only the memory could matter, and only to servers: there are none here.
    gpu = Gpu(
        name="this one",
        memory_gib=1024,
        bf16_tflops=1,
        memory_gb_s=1,
        nvlink_gb_s=1,
        sustained_matmul=1,
    )
    job = Job(
        shape=ModelShape(
            name="random",
            num_layers=shape.layers,
            hidden_size=shape.hidden,
            ffn_size=shape.ffn,
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_dim=shape.hidden // shape.heads,
            vocab_size=shape.vocab,
            max_positions=32768,
            tied_embeddings=shape.tied,
            qkv_bias=True,
            qk_norm=False,
        ),
        cluster=Cluster(
            gpu=gpu, gpus_per_node=1, num_nodes=1, network_gb_s=1, pcie_gb_s=1, host_memory_gib=1024
        ),
        layout=Layout(num_gpus=1),
        training=Training(
            micro_batch_tokens=num_tokens,
            log_prob_tokens=num_tokens,
            sequence_parallel=False,
            recompute_layers=1,
        ),
        rollout=Rollout(tensor=1, memory_fraction=0.5, max_sequences=1, separate_gpus=1),
        workload=Workload(
            num_groups=1,
            group_size=len(lengths),
            max_steps=1,
            mean_steps=1,
            max_prompt_tokens=max(lengths),
            mean_prompt_tokens=statistics.mean(lengths),
            max_response_tokens=1,
            mean_response_tokens=1,
        ),
    )
    num_micro_batches = -(-sum(lengths) // num_tokens)
    phases = {found.phase: found.parts for found in plan_memory(job, num_micro_batches).phases}
    seen = sum(size for name, size in phases[phase].items() if name != "overheads")
    return f"{seen / GIB:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
