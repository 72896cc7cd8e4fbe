"""How fast a conversion is, and how much memory it needs, beside a plain copy of the same files.

    python benchmarks/convert.py                     # a generated model of 2 GB; some minutes
    python benchmarks/convert.py --gigabytes 0.2 --repeat 1

Seconds are those of the work, after all imports, until the files are synced to disk; "cpu s" are
those of the processor, which a busy machine changes less. Memory is what the work adds at its peak
to what the process holds before it. The copy reads and writes each shard with the ``safetensors``
library. Megatron-Bridge converts with its own functions, on the layers of our CPU backend, which
need no Transformer Engine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_agent.checkpoint.output_file import output_file
from megatron_agent.checkpoint.safetensors_file import SafetensorsWriter, write_index
from megatron_agent.checkpoint.tensors import TensorSpec

HIDDEN, INTERMEDIATE, VOCAB, HEADS, KV_HEADS = 2048, 5632, 32000, 16, 8
SHARD_BYTES = 500_000_000
BENCHES = {
    "copy": "copy, safetensors",
    "to-tp1": "hf -> megatron, TP1",
    "to-tp2pp2": "hf -> megatron, TP2xPP2",
    "from-tp2pp2": "megatron TP2xPP2 -> hf",
    "reshard": "TP2xPP2 -> TP4",
    "verdict": "values and checksums of the last",
    "bridge-to": "Megatron-Bridge, hf -> megatron",
    "bridge-from": "Megatron-Bridge, megatron -> hf",
}
# In a process of its own each: the first one leaves the others neither memory nor process groups.
PROCESSES = (
    ("copy", "to-tp1", "to-tp2pp2", "from-tp2pp2", "reshard", "verdict"),
    ("bridge-to",),
    ("bridge-from",),
)


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the model")
    parser.add_argument("--repeat", type=int, default=3, help="tries of each; the fastest counts")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--bench", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if args.bench:
        for _ in range(args.repeat):  # by turns, so that a busy minute meets all of them
            for bench in args.bench:
                print(json.dumps({"bench": bench, **_measure(bench, args.folder)}), flush=True)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="convert-", dir=args.folder))
    try:
        num_bytes, largest = _make_model(folder / "hf", args.gigabytes)
        shard = max(path.stat().st_size for path in (folder / "hf").glob("*.safetensors"))
        print(
            f"model of {num_bytes / 1e9:.2f} GB, shards of {shard / 1e9:.2f} GB, largest tensor "
            f"{largest / 1e9:.2f} GB; {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
        )
        _print_table(folder, num_bytes, shard, args.repeat)
    finally:
        shutil.rmtree(folder)
    return 0


def _print_table(folder: Path, num_bytes: int, shard: int, repeat: int) -> None:
    print(
        f"{'':34} {'s':>7} {'GB/s':>6} {'of copy':>8} {'cpu s':>7} {'memory GB':>10} {'shards':>7}"
    )
    copy_s = 0.0
    for benches in PROCESSES:
        tries = _run_child(benches, folder, repeat)
        for bench in benches:
            best = min((one for one in tries if one["bench"] == bench), key=lambda one: one["s"])
            copy_s = best["s"] if bench == "copy" else copy_s
            print(
                f"{BENCHES[bench]:34} {best['s']:7.2f} {num_bytes / 1e9 / best['s']:6.2f} "
                f"{copy_s / best['s']:8.0%} {best['cpu_s']:7.2f} {best['memory'] / 1e9:10.2f} "
                f"{best['memory'] / shard:7.2f}",
                flush=True,
            )


def _run_child(benches: tuple[str, ...], folder: Path, repeat: int) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--folder", str(folder), "--repeat", str(repeat)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "THP_MEM_ALLOC_ENABLE": "1"}
    done = subprocess.run(
        [*command, "--bench", *benches], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{benches} failed:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"bench"')]


def _measure(bench: str, folder: Path) -> dict[str, Any]:
    work: dict[str, Callable[[Path], dict[str, Any]]] = {
        "copy": _copy,
        "to-tp1": lambda f: _convert(f, "hf", "tp1", "megatron", "TP1"),
        "to-tp2pp2": lambda f: _convert(f, "hf", "tp2pp2", "megatron", "TP2xPP2"),
        "from-tp2pp2": lambda f: _convert(f, "tp2pp2", "back", "hf", "TP1"),
        "reshard": lambda f: _convert(f, "tp2pp2", "tp4", "megatron", "TP4"),
        "verdict": lambda f: _verdict(f, "tp2pp2", "tp4"),
        "bridge-to": _bridge_to,
        "bridge-from": _bridge_from,
    }
    return work[bench](folder)


@contextmanager
def _watch() -> Iterator[dict[str, Any]]:
    """Seconds and additional memory of a block; the kernel's high-water mark starts anew."""
    Path("/proc/self/clear_refs").write_text("5")
    before, started, cpu_started = _memory("VmRSS"), time.monotonic(), time.process_time()
    result: dict[str, Any] = {}
    yield result
    result |= {
        "s": time.monotonic() - started,
        "cpu_s": time.process_time() - cpu_started,
        "memory": _memory("VmHWM") - before,
    }


def _memory(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def _copy(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file, save_file

    target = _fresh(folder / "copy")
    target.mkdir()
    with _watch() as result:
        for path in sorted((folder / "hf").glob("*.safetensors")):
            save_file(load_file(path), target / path.name, metadata={"format": "pt"})
        _sync(target)
    return result


def _convert(folder: Path, source: str, target: str, to: Any, layout: str) -> dict[str, Any]:
    from megatron_agent.checkpoint.convert import open_job, write
    from megatron_agent.checkpoint.layout import Layout
    from megatron_agent.checkpoint.request import Request

    request = Request(
        source=folder / source,
        target=_fresh(folder / target),
        to=to,
        layout=Layout.parse(layout),
        shard_bytes=SHARD_BYTES,
    )
    with open_job(request) as job, _watch() as result:
        write(job, {}).publish()
    return result


def _verdict(folder: Path, source: str, target: str) -> dict[str, Any]:
    from megatron_agent.checkpoint.convert import open_job
    from megatron_agent.checkpoint.layout import Layout
    from megatron_agent.checkpoint.locate import locate
    from megatron_agent.checkpoint.request import Request
    from megatron_agent.checkpoint.verdict import check_files, compare
    from megatron_agent.checkpoint.weights import open_weights

    request = Request(
        source=folder / source,
        target=folder / target,
        to="megatron",
        layout=Layout(tp=4),
        shard_bytes=SHARD_BYTES,
    )
    with (
        open_job(request) as job,
        open_weights(locate(request.target)) as found,
        _watch() as result,
    ):
        checks = [
            *check_files(request.target),
            *compare(job.rules, job.weights, found, job.stored),
        ]
    assert all(check.passed for check in checks), checks
    return result


def _bridge_to(folder: Path) -> dict[str, Any]:
    target = _fresh(folder / "bridge")

    def work(bridge: Any, model: Any) -> None:
        bridge.load_hf_weights([model])
        bridge.save_megatron_model([model], target)
        _sync(target)

    return _with_bridge(folder, work)


def _bridge_from(folder: Path) -> dict[str, Any]:
    target = _fresh(folder / "bridge-hf")

    def work(bridge: Any, model: Any) -> None:
        from megatron.core import dist_checkpointing

        state = {"model": model.sharded_state_dict(metadata={})}
        loaded = dist_checkpointing.load(state, str(folder / "bridge" / "iter_0000000"))
        model.load_state_dict(loaded["model"])
        bridge.save_hf_pretrained([model], target, show_progress=False)
        _sync(target)

    return _with_bridge(folder, work)


def _with_bridge(folder: Path, work: Callable[[Any, Any], None]) -> dict[str, Any]:
    """Measure Megatron-Bridge from an empty model to the end of ``work``."""
    from megatron_agent.checkpoint import megatron_model

    megatron_model.prepare()
    import torch.distributed as dist
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from megatron_agent.backend.cpu.cuda_standins import cuda_means_cpu
    from megatron_agent.checkpoint.layout import UNSPLIT

    if not dist.is_initialized():
        rendezvous = Path(tempfile.mkdtemp(dir=folder)) / "rendezvous"
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
    bridge = AutoBridge.from_hf_pretrained(folder / "hf")
    config = megatron_model.read_config(folder / "hf")
    with cuda_means_cpu(), torch.no_grad(), _watch() as result:
        model_parallel_cuda_manual_seed(1)
        model = megatron_model.build_model(config, UNSPLIT, device="cpu")
        work(bridge, model)
    return result


def _make_model(folder: Path, gigabytes: float) -> tuple[int, int]:
    """Write a random bfloat16 model; returns its bytes and those of its largest tensor."""
    from transformers import Qwen2Config

    folder.mkdir()
    head = HIDDEN // HEADS
    layer = {
        "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * head, HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * head, HIDDEN),
        "self_attn.q_proj.bias": (HIDDEN,),
        "self_attn.k_proj.bias": (KV_HEADS * head,),
        "self_attn.v_proj.bias": (KV_HEADS * head,),
        "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }
    outside = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    layer_bytes = sum(2 * torch.Size(shape).numel() for shape in layer.values())
    outside_bytes = sum(2 * torch.Size(shape).numel() for shape in outside.values())
    num_layers = max(2, 2 * round((gigabytes * 1e9 - outside_bytes) / layer_bytes / 2))
    shapes = {**outside} | {
        f"model.layers.{number}.{name}": shape
        for number in range(num_layers)
        for name, shape in layer.items()
    }
    specs = {name: TensorSpec(torch.bfloat16, shape) for name, shape in shapes.items()}
    files: dict[str, dict[str, TensorSpec]] = {}
    for name, spec in specs.items():
        file = f"model-{len(files):05d}.safetensors"
        if not files or sum(s.num_bytes for s in files[file].values()) > SHARD_BYTES:
            file = f"model-{len(files) + 1:05d}.safetensors"
        files.setdefault(file, {})[name] = spec
    torch.manual_seed(1)
    for file, contents in files.items():
        with output_file(folder / file) as output:
            writer = SafetensorsWriter(output, contents)
            for name, spec in contents.items():
                writer.append(name, 0.02 * torch.randn(spec.shape, dtype=torch.bfloat16))
            writer.close()
    write_index(folder, files)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=num_layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        tie_word_embeddings=False,
        dtype="bfloat16",
        architectures=["Qwen2ForCausalLM"],
    )
    config.save_pretrained(folder)
    sizes = [spec.num_bytes for spec in specs.values()]
    return sum(sizes), max(sizes)


def _fresh(path: Path) -> Path:
    for old in (path, path.with_name(path.name + ".partial")):
        shutil.rmtree(old, ignore_errors=True)
    return path


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        file_no = os.open(path, os.O_RDONLY)
        os.fsync(file_no)
        os.close(file_no)


if __name__ == "__main__":
    sys.exit(main())
