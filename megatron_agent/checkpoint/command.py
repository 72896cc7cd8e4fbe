"""The command line of ``tools/convert_ckpt.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from megatron_agent.checkpoint.layout import UNSPLIT, Layout
from megatron_agent.checkpoint.locate import Kind, Located, locate
from megatron_agent.checkpoint.request import Request, parse_bytes
from megatron_agent.checkpoint.tensors import FLOAT_DTYPES
from megatron_agent.checkpoint.verdict import Check, Verdict, check_files, check_side_files, compare
from megatron_agent.checkpoint.weights import HFWeights, open_weights
from megatron_agent.errors import ConfigError

EXIT_FAILED_VERDICT = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How a conversion is run.

    Attributes:
        dry_run: print the plan and stop.
        verify_only: check an existing target.
        verdict: check the result.
        logits: run both models, as far as memory allows; False leaves that check out.
        progress: show a bar.
    """

    dry_run: bool = False
    verify_only: bool = False
    verdict: bool = True
    logits: bool = True
    progress: bool = True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    Returns:
        0 done and checked; 1 the verdict is FAIL; 2 a mistake, or what the system refuses, in one
        line; 130 for Ctrl-C, after which the same command goes on.
    """
    args = _parser().parse_args(argv)
    try:
        request = Request(
            source=args.source,
            target=args.target.absolute(),
            to=args.to or _format(args),
            layout=Layout.parse(args.layout) if args.layout else UNSPLIT,
            dtype=FLOAT_DTYPES[args.dtype] if args.dtype else None,
            lora=args.lora,
            hf_files=args.hf,
            shard_bytes=parse_bytes(args.shard_size),
        )
        mode = Mode(
            dry_run=args.dry_run,
            verify_only=args.verify_only,
            verdict=args.verdict,
            logits=args.logits,
            progress=args.progress,
        )
        return run(request, mode)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"convert_ckpt.py: {' '.join(str(error).split())}\n")
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("convert_ckpt.py: interrupted; the same command goes on.\n")
        return EXIT_INTERRUPTED


def run(request: Request, mode: Mode, say: Callable[[str], Any] = print) -> int:
    """Convert, or check a conversion; returns the exit code.

    Raises:
        CheckpointError: whatever is wrong with source, target or options.
    """
    from megatron_agent.checkpoint import convert

    checks: list[Check] = []
    partial = None
    with convert.open_job(request) as job:
        say(job.describe(writes=not mode.verify_only))
        if mode.dry_run:
            if not mode.verify_only:
                convert.check_target(job)
            return 0
        if mode.verify_only:
            result = locate(request.target)
            root = request.target
        else:
            with _bar("write", job.num_bytes, mode) as bar:
                partial = convert.write(job, convert.about(job), bar.update)
            root = partial.root
            result = convert.target_weights(root, job)
        if mode.verdict or mode.verify_only:
            checks += [*check_files(root), check_side_files(result)]
            with _bar("check", job.num_bytes, mode) as bar, open_weights(result) as target:
                checks += compare(job.rules, job.weights, target, job.stored, bar.update)
    if checks and mode.logits and all(check.passed for check in checks):
        checks += _logits(job, result)
    verdict = Verdict(tuple(checks))
    if checks:
        say(verdict.table())
    if not verdict.passed:
        # A file that was damaged after it was written would fail every further try, too.
        where = f"; the result stays in {root}: remove it to convert anew" if partial else ""
        say(f"{request.target} is not what {request.source} is{where}")
        return EXIT_FAILED_VERDICT
    if partial is not None:
        partial.publish()
        say(f"wrote {request.target}")
    return 0


def _format(args: argparse.Namespace) -> Kind:
    """What the target is; or is to be, the other format than the source."""
    if args.verify_only:
        return locate(args.target).kind
    return "hf" if locate(args.source).kind == "megatron" else "megatron"


def _logits(job: Any, result: Located) -> list[Check]:
    from megatron_agent.checkpoint.logits import choose_layers, compare_logits

    request = job.request
    with open_weights(job.located) as source, open_weights(result) as target:
        sides = {"source": source, "result": target}
        layers = choose_layers(job.rules)
        # PEFT merges into whole models of transformers, whose experts have no names of their own.
        can_merge = isinstance(source, HFWeights) and len(layers) == job.rules.num_layers
        if request.lora is not None and (not can_merge or job.rules.num_experts):
            return []
        return [
            compare_logits(job.config, job.hf_files, sides, layers, request.dtype, request.lora)
        ]


def _bar(what: str, num_bytes: int, mode: Mode) -> tqdm[Any]:
    return tqdm(
        desc=what,
        total=num_bytes,
        unit="B",
        unit_scale=True,
        disable=not mode.progress,
        mininterval=1.0,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convert_ckpt.py",
        description="Convert checkpoints between Hugging Face and Megatron, and check the result.",
    )
    parser.add_argument(
        "source", type=Path, help="Hugging Face folder, Megatron or verl checkpoint"
    )
    parser.add_argument("target", type=Path, help="folder to make")
    parser.add_argument("--to", choices=("hf", "megatron"), help="the other format by default")
    parser.add_argument("--layout", metavar="TP2xPP2", help="ranks to cut a Megatron target for")
    parser.add_argument(
        "--dtype", choices=tuple(FLOAT_DTYPES), help="that of the source by default"
    )
    parser.add_argument("--lora", type=Path, metavar="DIR", help="PEFT adapter to merge")
    parser.add_argument("--hf", type=Path, metavar="DIR", help="folder with config and tokenizer")
    parser.add_argument("--shard-size", default="5GB", help="largest file (default 5GB)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument("--verify-only", action="store_true", help="check an existing target")
    for name, what in (("verdict", "check the result"), ("logits", "run both models")):
        parser.add_argument(f"--no-{name}", dest=name, action="store_false", help=f"do not {what}")
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="no bar")
    return parser
