"""Training runs of several methods from one start: make them, tabulate them, draw them.

Behind `learning_cpu.py` and `credit_learning.py`. A run that is there already is not repeated, and
one that was interrupted goes on, so either may be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_agent.backend.cpu.environment import set_cpu_environment
from megatron_agent.backend.cpu.prefork.launch import PreforkServer, prefork_server
from megatron_agent.policy.evaluate import wilson_interval

EVAL_SUCCESS = "success/mean@1"
TRAIN_SUCCESS = "episode/success/mean"
COLORS = {
    "gigpo": "tab:blue",
    "grpo": "tab:orange",
    "hgpo": "tab:green",
    "rloo": "tab:red",
    "gae": "tab:purple",
}


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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, and where."""

    methods: Sequence[str]
    num_seeds: int
    size: int
    max_steps: int
    iterations: int
    num_eval: int
    target_success: float
    policy_flags: Sequence[str]
    folder: Path
    overrides: Sequence[str]

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> Plan:
        return cls(
            methods=args.methods,
            num_seeds=args.seeds,
            size=args.size,
            max_steps=args.max_steps,
            iterations=args.iterations,
            num_eval=args.num_eval,
            target_success=args.target_success,
            policy_flags=args.policy_flags.split(),
            folder=args.out / f"{args.size}x{args.size}",
            overrides=args.overrides,
        )

    @property
    def policy(self) -> Path:
        """The start of all runs."""
        return self.folder / "policy"

    @property
    def runs(self) -> list[Run]:
        """Seed by seed, so that all methods have as many runs whenever one stops."""
        return [
            Run(method=method, seed=seed, folder=self.folder / f"{method}-{seed}")
            for seed in range(self.num_seeds)
            for method in self.methods
        ]


def add_arguments(parser: argparse.ArgumentParser, *, methods: Sequence[str]) -> None:
    """Options of both programs."""
    parser.add_argument("--size", type=int, default=4, help="maps of size x size")
    parser.add_argument("--max-steps", type=int, default=10, help="longest episode")
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        default=list(methods),
        metavar="NAME,NAME",
        help=f"credit methods, default {','.join(methods)}",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--num-eval", type=int, default=200, help="held-out tasks")
    parser.add_argument("--target-success", type=float, default=0.4, help="of the warm start")
    parser.add_argument(
        "--policy-flags", default="", metavar="FLAGS", help="more, for tools/make_policy.py"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("overrides", nargs="*", metavar="key=value")


def run_and_report(plan: Plan, name: str, *, train: bool) -> None:
    """Make the runs that are missing, then print ``<name>.md`` and draw ``<name>.png``."""
    if train:
        if not plan.policy.exists():
            _make_policy(plan)
        missing = [run for run in plan.runs if not _is_done(run, plan)]
        if missing:
            _train_all(missing, plan)
    table = "\n\n".join([_start(plan), _table(plan), _endings(plan)])
    print(table)
    table_path, picture_path = plan.folder / f"{name}.md", plan.folder / f"{name}.png"
    table_path.write_text(table + "\n")
    _draw(plan, picture_path)
    print(f"Wrote {table_path} and {picture_path}.")


def _start(plan: Plan) -> str:
    """What the policy knew before."""
    made = json.loads((plan.policy / "policy.json").read_text())["warm_start"]
    sampled, greedy = made["success"]["success_rate"], made["greedy_success"]["success_rate"]
    return (
        f"Start: success {sampled:.3f} sampled at temperature 1, {greedy:.3f} nearly greedy "
        f"({made['success']['num_episodes']} training tasks that no demonstration came from)."
    )


def _make_policy(plan: Plan) -> None:
    subprocess.run(
        [
            sys.executable,
            str(Path(__file__).resolve().parents[1] / "tools" / "make_policy.py"),
            f"--out={plan.policy}",
            "--warm-start",
            f"--target-success={plan.target_success}",
            f"--max-steps={plan.max_steps}",
            "--env-option",
            f"size={plan.size}",
            *plan.policy_flags,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _is_done(run: Run, plan: Plan) -> bool:
    steps, _ = run.curve(TRAIN_SUCCESS)
    return bool(steps) and steps[-1] >= plan.iterations


def _train_all(runs: Sequence[Run], plan: Plan) -> None:
    """Fork all from one server: its imports, most of the start of a run, are done once."""
    set_cpu_environment()
    with prefork_server(plan.folder / "prefork.log") as server:
        server.wait_ready()
        for run in runs:
            _train(run, plan, server)


def _train(run: Run, plan: Plan, server: PreforkServer) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    print(f"{run.method} seed {run.seed}: training in {run.folder}", flush=True)
    command = [
        str(server.python),
        "-m",
        "megatron_agent.train",
        "experiment=frozenlake_cpu",
        f"credit={run.method}",
        f"run.dir={run.folder}",
        f"actor_rollout_ref.model.path={plan.policy}",
        f"env.seed={run.seed}",
        f"env.options.size={plan.size}",
        f"env.max_steps={plan.max_steps}",
        # The board stands in the prompt; the 192 tokens of the experiment are for 4x4.
        f"data.max_prompt_length={max(192, 4 * plan.size**2)}",
        f"env.tasks.num_eval={plan.num_eval}",
        f"trainer.total_training_steps={plan.iterations}",
        # One whole model on each core: the fastest layout here. The others give the same numbers.
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
        "cluster.data_parallel_size=2",
        # Two checkpoints are enough to go on from.
        "trainer.save_freq=20",
        *plan.overrides,
    ]
    with (run.folder / "train.log").open("ab") as log:
        environment = {**os.environ, **server.environment}
        subprocess.run(command, check=True, stdout=log, stderr=log, env=environment)


def _table(plan: Plan) -> str:
    rows = [
        "| method | seed | before | after | iterations |",
        "|---|---|---|---|---|",
    ]
    for run in plan.runs:
        steps, values = run.curve(EVAL_SUCCESS)
        if len(values) < 2:
            continue
        rows.append(
            f"| {run.method} | {run.seed} | {_with_interval(values[0], plan.num_eval)} "
            f"| {_with_interval(values[-1], plan.num_eval)} | {steps[-1]} |"
        )
    for method in plan.methods:
        after = [run.curve(EVAL_SUCCESS)[1] for run in plan.runs if run.method == method]
        finals = [values[-1] for values in after if len(values) > 1]
        if finals:
            pooled = sum(finals) / len(finals)
            interval = _with_interval(pooled, plan.num_eval * len(finals))
            rows.append(f"| **{method}** | all | | **{interval}** | |")
    return "\n".join(rows)


def _endings(plan: Plan) -> str:
    """How held-out episodes end, by evaluation, over the seeds of a method. A hole is "avoidable"
    when the player could have gone on to the right or down instead, and a "trap" when only the way
    back was left.
    """
    rows = [
        "| method | iteration | goal | time-out | avoidable hole | trap |",
        "|---|---|---|---|---|---|",
    ]
    for method in plan.methods:
        by_step: dict[int, Counter[str]] = {}
        for run in plan.runs:
            if run.method == method:
                _count_endings(run, by_step)
        for step, ends in sorted(by_step.items()):
            counts = [ends[kind] for kind in ("goal", "time-out", "avoidable hole", "trap")]
            rows.append(f"| {method} | {step} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(rows)


def _count_endings(run: Run, by_step: dict[int, Counter[str]]) -> None:
    seen: dict[tuple[int, str], dict[str, Any]] = {}
    for path in sorted((run.folder / "episodes").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            episode = json.loads(line)
            if episode["split"] == "eval":
                # An evaluation that was repeated after an interruption counts once.
                seen[episode["global_step"], episode["task_id"]] = episode
    for (step, _), episode in seen.items():
        by_step.setdefault(step, Counter())[_ending(episode)] += 1


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


def _draw(plan: Plan, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    panels = ((EVAL_SUCCESS, "held-out tasks"), (TRAIN_SUCCESS, "training tasks"))
    for axis, (key, title) in zip(axes, panels, strict=True):
        for run in plan.runs:
            steps, values = run.curve(key)
            label = run.method if run.seed == 0 else None
            axis.plot(steps, values, color=COLORS.get(run.method), alpha=0.7, label=label)
        axis.set(title=title, xlabel="iteration", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"success, {plan.size}x{plan.size} maps")
    axes[0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
