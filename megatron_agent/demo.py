"""``make demo``: from nothing to a trained agent on a machine without a GPU.

Makes the tasks and a small policy that has seen an expert, trains it with GiGPO through the whole
stack, and writes ``<run>/summary.json`` with the success on held-out tasks before and after.

    python -m megatron_agent.demo --tp 2 --pp 1
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import ConfigError, MegatronAgentError
from megatron_agent.run_folder import read_record, write_json
from megatron_agent.run_lock import LOCK_FILE, hold_run

logger = logging.getLogger(__name__)

SUCCESS_KEY = "success/mean@1"
DEFAULT_POLICY = Path("runs/policies/demo")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns its exit code: 0 when the policy got better."""
    parser = argparse.ArgumentParser(prog="megatron_agent.demo", description=__doc__)
    parser.add_argument("--tp", type=int, default=2, help="tensor parallelism")
    parser.add_argument("--pp", type=int, default=1, help="pipeline parallelism")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/demo"))
    parser.add_argument("--policy", type=Path, default=DEFAULT_POLICY)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    os.environ.setdefault("TQDM_DISABLE", "1")  # read once, when the policy maker imports tqdm
    try:
        return run_demo(options)
    except MegatronAgentError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 2


def run_demo(options: argparse.Namespace) -> int:
    """Tasks, policy, training, summary."""
    from megatron_agent.config import check_config, compose_config
    from megatron_agent.config.findings import Findings
    from megatron_agent.config.rules.layout import check_shape

    started_s = time.time()
    overrides = [
        "experiment=demo",
        f"run.dir={options.run_dir}",
        f"actor_rollout_ref.model.path={options.policy}",
        f"actor_rollout_ref.actor.megatron.tensor_model_parallel_size={options.tp}",
        f"actor_rollout_ref.actor.megatron.pipeline_model_parallel_size={options.pp}",
        *options.overrides,
    ]
    findings = Findings()
    config = compose_config(overrides, findings=findings)
    settings = check_config(config, findings)
    # The policy is about to be made; everything else must be right before a minute is spent on it,
    # also what is known of its shape.
    others = [p for p in findings.problems if p.key != "actor_rollout_ref.model.path"]
    if len(others) < len(findings.problems):
        findings.problems = others
        check_shape(ConfigValues.from_config(config), shape_to_come(), findings)
    findings.raise_if_any()
    assert settings is not None
    refuse_other_content(options.run_dir, settings.run.name)
    make_policy(options.policy, settings.env)
    policy_s = time.time() - started_s
    remove_earlier_run(options.run_dir, settings.run.name)

    from megatron_agent.train import train

    train_started_s = time.time()
    exit_code = train(overrides, argv=sys.argv)
    if exit_code != 0:
        return exit_code
    summary = summarise(options.run_dir, train_started_s=train_started_s)
    summary.update(
        tp=options.tp,
        pp=options.pp,
        seconds_policy=round(policy_s, 1),
        seconds_total=round(time.time() - started_s, 1),
    )
    write_json(options.run_dir / "summary.json", summary)
    logger.info("%s", json.dumps(summary, indent=2))
    if summary["success_after"] <= summary["success_before"]:
        logger.error("The policy did not get better.")
        return 1
    return 0


def refuse_other_content(run_dir: Path, name: str) -> None:
    """Nothing but an earlier run of this name would be removed.

    Raises:
        ConfigError: the folder holds something else.
    """
    if not run_dir.exists() or (run_dir.is_dir() and not any(run_dir.iterdir())):
        return
    if not _is_run(run_dir, name):
        raise ConfigError(
            "--run-dir",
            f"must be a new folder or that of an earlier run named {name!r}: what is in it would "
            "be removed",
            str(run_dir),
            "Choose another folder, or remove it yourself.",
        )


def remove_earlier_run(run_dir: Path, name: str) -> None:
    """Empty the folder of an earlier run; from here on it is this process's own.

    Raises:
        ConfigError: another process runs in the folder, or it holds something else than a run of
            this name.
    """
    refuse_other_content(run_dir, name)
    hold_run(run_dir)
    for path in run_dir.iterdir():
        if path.name == LOCK_FILE:
            continue
        logger.info("Removing %s of the demo before.", path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _is_run(folder: Path, name: str) -> bool:
    """A run of this name, or what is left of one whose removal or first seconds were interrupted.

    The name is that of the run's configuration: another run's folder may be called anything.
    """
    if not any((folder / file).is_file() for file in ("run.json", LOCK_FILE)):
        return False
    try:
        attempts = read_record(folder)["attempts"]
    except ConfigError:
        return False
    return all(ConfigValues(attempt["config"]).text("run.name") == name for attempt in attempts)


def shape_to_come() -> dict[str, int]:
    """Sizes of the policy that is about to be made, as its ``config.json`` will name them."""
    from megatron_agent.policy.build import PolicyRecipe

    recipe = PolicyRecipe(env="frozenlake")  # equal for all
    return {
        "num_attention_heads": recipe.shape.heads,
        "num_key_value_heads": recipe.shape.kv_heads,
        "num_hidden_layers": recipe.shape.layers,
        "vocab_size": recipe.vocab_size,
    }


def make_policy(folder: Path, env: Any) -> None:
    """A warm-started policy for ``env``; one made by the same recipe is kept."""
    from megatron_agent.policy.build import RECIPE_FILE, PolicyRecipe, build_policy
    from megatron_agent.policy.warm_start import WarmStartConfig

    warm_start = WarmStartConfig(
        max_steps=env.max_steps,
        history_length=env.history_length,
        memory=env.memory,
        prompt_file=env.prompt_file,
    )
    recipe = PolicyRecipe(env=env.env_name, env_options=dict(env.options), warm_start=warm_start)
    if (folder / RECIPE_FILE).is_file():
        made = json.loads((folder / RECIPE_FILE).read_text())
        wanted = {"env": recipe.env, "env_options": dict(recipe.env_options)}
        same_start = warm_start.to_dict().items() <= (made.get("warm_start") or {}).items()
        same_prompt = warm_start.prompt_file is None  # what a file holds may have changed
        if same_prompt and same_start and wanted.items() <= made.items():
            logger.info("Using the policy in %s.", folder)
            return
    logger.info("Making a policy in %s: imitating an expert for a minute or two.", folder)
    # A policy that somebody made in another place, by another recipe, is not ours to replace.
    build_policy(recipe, folder, overwrite=folder == DEFAULT_POLICY)


def summarise(run_dir: Path, *, train_started_s: float) -> dict[str, Any]:
    """Read ``metrics.jsonl``.

    Returns:
        ``success_before`` and ``success_after`` (held-out tasks, first and last evaluation),
        ``episodes_per_evaluation``, ``iterations``, and ``seconds_to_first_step``: from the start
        of training, model loading and the first evaluation included, to the end of step 1.
    """
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluations = [
        value
        for line in lines
        for key, value in line.items()
        if key.endswith(SUCCESS_KEY) and "/std" not in key
    ]
    steps = [line for line in lines if "train/rows" in line]
    run = read_record(run_dir)
    return {
        "success_before": evaluations[0],
        "success_after": evaluations[-1],
        "episodes_per_evaluation": run["attempts"][-1]["config"]["env"]["tasks"]["num_eval"],
        "iterations": len(steps),
        "seconds_to_first_step": round(steps[0]["time"] - train_started_s, 1),
        "seconds_per_step": round(
            sum(line["timing_s/step"] for line in steps[1:]) / max(1, len(steps) - 1), 2
        ),
    }


if __name__ == "__main__":
    raise SystemExit(main())
