"""Does it learn? GiGPO and GRPO from one warm-started policy, several seeds, on a CPU.

    python benchmarks/learning_cpu.py                         # 4x4 maps, 3 seeds, 40 iterations
    python benchmarks/learning_cpu.py --size 8 --max-steps 30 # longer horizons
    python benchmarks/learning_cpu.py --report                # table and picture of what is there

A run that is there already is not repeated, and one that was interrupted goes on, so the benchmark
may be stopped at any time. Prints success on held-out tasks before and after with 95 % Wilson
intervals, and draws the curves of evaluation and training success.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_agent.policy.evaluate import wilson_interval

EVAL_SUCCESS = "success/mean@1"
TRAIN_SUCCESS = "episode/success/mean"
COLORS = {"gigpo": "tab:blue", "grpo": "tab:orange"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished or unfinished training run."""

    method: str
    seed: int
    folder: Path

    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of the first metric whose name ends with ``key``."""
        points = [
            (line["step"], value)
            for line in self.lines()
            for name, value in line.items()
            if name.endswith(key) and "/std" not in name
        ]
        return [step for step, _ in points], [value for _, value in points]


def main() -> int:
    """See the module's docstring."""
    args = _parse()
    root = args.out / f"{args.size}x{args.size}"
    policy = root / "policy"
    runs = [
        Run(method=method, seed=seed, folder=root / f"{method}-{seed}")
        for seed in range(args.seeds)
        for method in args.methods
    ]
    if not args.report:
        if not policy.exists():
            _make_policy(policy, args)
        for run in runs:
            _train(run, policy, args)
    table = "\n\n".join([_table(runs, args), _endings(runs)])
    print(table)
    (root / "table.md").write_text(table + "\n")
    _draw(runs, root / "curves.png", args)
    print(f"Wrote {root / 'table.md'} and {root / 'curves.png'}.")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=4, help="maps of size x size")
    parser.add_argument("--max-steps", type=int, default=10, help="longest episode")
    parser.add_argument("--methods", nargs="+", default=["gigpo", "grpo"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--num-eval", type=int, default=200, help="held-out tasks")
    parser.add_argument("--target-success", type=float, default=0.4, help="of the warm start")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    return parser.parse_args()


def _make_policy(folder: Path, args: argparse.Namespace) -> None:
    subprocess.run(
        [
            sys.executable,
            str(Path(__file__).resolve().parents[1] / "tools" / "make_policy.py"),
            f"--out={folder}",
            "--warm-start",
            f"--target-success={args.target_success}",
            f"--max-steps={args.max_steps}",
            "--env-option",
            f"size={args.size}",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _train(run: Run, policy: Path, args: argparse.Namespace) -> None:
    steps, _ = run.curve(TRAIN_SUCCESS)
    if steps and steps[-1] >= args.iterations:
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    print(f"{run.method} seed {run.seed}: training in {run.folder}", flush=True)
    command = [
        sys.executable,
        "-m",
        "megatron_agent.train",
        "experiment=frozenlake_cpu",
        f"algorithm.adv_estimator={run.method}",
        f"run.dir={run.folder}",
        f"actor_rollout_ref.model.path={policy}",
        f"env.seed={run.seed}",
        f"env.options.size={args.size}",
        f"env.max_steps={args.max_steps}",
        f"env.tasks.num_eval={args.num_eval}",
        f"trainer.total_training_steps={args.iterations}",
        # One whole model on each core: the fastest layout here. The others give the same numbers.
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
        "cluster.data_parallel_size=2",
        # Two checkpoints are enough to go on from.
        "trainer.save_freq=20",
        *args.overrides,
    ]
    with (run.folder / "train.log").open("ab") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)


def _table(runs: list[Run], args: argparse.Namespace) -> str:
    rows = [
        "| method | seed | before | after | iterations |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        steps, values = run.curve(EVAL_SUCCESS)
        if len(values) < 2:
            continue
        rows.append(
            f"| {run.method} | {run.seed} | {_with_interval(values[0], args.num_eval)} "
            f"| {_with_interval(values[-1], args.num_eval)} | {steps[-1]} |"
        )
    for method in args.methods:
        after = [run.curve(EVAL_SUCCESS)[1] for run in runs if run.method == method]
        finals = [values[-1] for values in after if len(values) > 1]
        if finals:
            pooled = sum(finals) / len(finals)
            interval = _with_interval(pooled, args.num_eval * len(finals))
            rows.append(f"| **{method}** | all | | **{interval}** | |")
    return "\n".join(rows)


def _endings(runs: list[Run]) -> str:
    """How held-out episodes end, by evaluation. A hole is "avoidable" when the player could have
    gone on to the right or down instead, and a "trap" when only the way back was left.
    """
    rows = [
        "| run | iteration | goal | time-out | avoidable hole | trap |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        by_step: dict[int, Counter[str]] = {}
        for path in sorted((run.folder / "episodes").glob("*.jsonl")):
            for line in path.read_text().splitlines():
                episode = json.loads(line)
                if episode["split"] == "eval":
                    ends = by_step.setdefault(episode["global_step"], Counter())
                    ends[_ending(episode)] += 1
        for step, ends in sorted(by_step.items()):
            counts = [ends[kind] for kind in ("goal", "time-out", "avoidable hole", "trap")]
            rows.append(
                f"| {run.method} {run.seed} | {step} | " + " | ".join(map(str, counts)) + " |"
            )
    return "\n".join(rows)


def _ending(episode: dict[str, Any]) -> str:
    if episode["success"]:
        return "goal"
    last = episode["turns"][-1]
    if not last["terminated"]:
        return "time-out"
    around = last["prompt"].rsplit("Around: ", 1)[1].rstrip(".").split(", ")
    ahead = {words.rsplit(" ", 1)[1] for words in around if words.startswith(("right ", "down "))}
    return "avoidable hole" if ahead & {"F", "G"} else "trap"


def _with_interval(rate: float, num_episodes: int) -> str:
    low, high = wilson_interval(round(rate * num_episodes), num_episodes)
    return f"{rate:.3f} [{low:.2f}, {high:.2f}]"


def _draw(runs: list[Run], path: Path, args: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    panels = ((EVAL_SUCCESS, "held-out tasks"), (TRAIN_SUCCESS, "training tasks"))
    for axis, (key, title) in zip(axes, panels, strict=True):
        for run in runs:
            steps, values = run.curve(key)
            label = run.method if run.seed == 0 else None
            axis.plot(steps, values, color=COLORS.get(run.method), alpha=0.7, label=label)
        axis.set(title=title, xlabel="iteration", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"success, {args.size}x{args.size} maps")
    axes[0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    raise SystemExit(main())
