"""The folder of a run and its ``run.json``: what ran, with which versions, configuration and seeds.

A run may take several attempts (stopped, preempted, resumed). Each start appends one; once the run
has admitted a task or written a checkpoint, a start whose configuration differs in what these
depend on is refused.

Layout::

    runs/<name>/run.lock        held by the process that runs
    runs/<name>/run.json        versions, seeds and configuration of every attempt
    runs/<name>/tasks/          generated task lists
    runs/<name>/checkpoints/    written by verl
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from megatron_agent.atomic_file import atomic_file
from megatron_agent.config import Findings, as_plain
from megatron_agent.config.rules.tasks import FILE_KEYS, generated_file
from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import ConfigError
from megatron_agent.ledger import Admitted, Ledger, LedgerError, read_ledger
from megatron_agent.provenance import git_commit, optional_packages, versions
from megatron_agent.run_lock import hold_run

FORMAT = 1
"""Raised when ``run.json`` changes in a way that readers must know."""

_MEGATRON = "actor_rollout_ref.actor.megatron"
FIXED_KEYS: tuple[str, ...] = (
    "actor_rollout_ref.model.path",
    "algorithm.adv_estimator",
    "env.env_name",
    "env.seed",
    "env.options",
    "env.max_steps",
    "env.history_length",
    "env.memory",
    "env.prompt_file",
    "env.rollout.n",
    "env.tasks",
    "data.train_files",
    "data.val_files",
    "data.train_batch_size",
    "data.seed",
    "data.shuffle",
)
"""Keys that a resumed run must not change: they decide the policy, the tasks and their order."""

LAYOUT_KEYS: tuple[str, ...] = (
    f"{_MEGATRON}.tensor_model_parallel_size",
    f"{_MEGATRON}.pipeline_model_parallel_size",
    f"{_MEGATRON}.context_parallel_size",
    f"{_MEGATRON}.expert_model_parallel_size",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
)
"""Fixed too, unless optimizer states are saved in the form that can be cut anew, or left alone."""

SEED_KEYS: tuple[str, ...] = (
    "env.seed",
    "env.tasks.seed",
    "data.seed",
    f"{_MEGATRON}.seed",
    "actor_rollout_ref.rollout.seed",
    "actor_rollout_ref.actor.data_loader_seed",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFolder:
    """A prepared run folder."""

    path: Path
    attempt: int
    """1 at the first start, one more at each resume."""

    @property
    def is_resumed(self) -> bool:
        """Whether this start continues an earlier one."""
        return self.attempt > 1


def prepare_run(run_dir: Path, config: DictConfig, argv: Sequence[str]) -> RunFolder:
    """Create or reopen the folder of a run and record this attempt in its ``run.json``.

    The folder is this process's own until the process ends (`megatron_agent.run_lock`).

    Args:
        run_dir: folder of the run; created when absent.
        config: the validated configuration.
        argv: the command line, as typed.

    Returns:
        The folder and the number of this attempt.

    Raises:
        ConfigProblemsError: the folder holds a run with another model, environment, data order or
            layout.
        ConfigError: ``run.json`` cannot be read, or another process is in the folder.

    Example:
        >>> prepare_run(Path("runs/demo"), config, ["train"]).attempt  # doctest: +SKIP
        1
    """
    hold_run(run_dir)
    record = read_record(run_dir)
    tree = as_plain(config)
    attempts = record["attempts"]
    if attempts:
        differences = _differences(run_dir, _newest_training(attempts)["config"], tree)
        if differences.problems:
            if _has_begun(run_dir):
                differences.raise_if_any()
            # Nothing hangs on the earlier start but the task lists that it made.
            for key in FILE_KEYS:
                if (path := generated_file(ConfigValues(tree), key)) is not None:
                    path.unlink(missing_ok=True)
    attempts.append(_describe_attempt(len(attempts) + 1, tree, argv))
    write_json(run_dir / "run.json", record)
    return RunFolder(path=run_dir, attempt=len(attempts))


def current_attempt(run_dir: Path) -> int:
    """Number of the newest attempt, 0 where none has begun. Any process of a run may ask.

    Raises:
        ConfigError: ``run.json`` cannot be read.

    Example:
        >>> current_attempt(Path("runs/demo"))  # doctest: +SKIP
        1
    """
    return len(read_record(run_dir)["attempts"])


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON so that ``path`` holds, at any moment, its old content or all of the new one."""
    with atomic_file(path) as file:
        json.dump(content, file, indent=2, default=str)
        file.write("\n")


def _describe_attempt(number: int, tree: Mapping[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    values = ConfigValues(tree)
    return {
        "attempt": number,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(argv),
        "versions": versions(),
        "git_commit": git_commit(),
        "optional_packages": optional_packages(),
        "seeds": {key: values.get(key) for key in SEED_KEYS},
        "config": tree,
    }


def read_record(run_dir: Path) -> dict[str, Any]:
    """What ``run.json`` holds; a record without attempts where there is none.

    Raises:
        ConfigError: it cannot be read, or is of another format.

    Example:
        >>> read_record(Path("runs/none"))
        {'format': 1, 'name': 'none', 'attempts': []}
    """
    path = run_dir / "run.json"
    if not path.exists():
        return {"format": FORMAT, "name": run_dir.name, "attempts": []}
    remedy = "Move the folder away, or start another run with run.name=... ."
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        rule = f"must hold a readable run.json ({error})"
        raise ConfigError("run.dir", rule, str(run_dir), remedy) from error
    attempts = record.get("attempts") if isinstance(record, dict) else None
    is_record = isinstance(attempts, list) and all(
        isinstance(attempt, dict) and isinstance(attempt.get("config"), dict)
        for attempt in attempts
    )
    if not is_record or record.get("format") != FORMAT:
        rule = f"must hold a run.json of format {FORMAT}"
        raise ConfigError("run.dir", rule, str(run_dir), remedy)
    return dict(record)


def _has_begun(run_dir: Path) -> bool:
    """Whether a task was admitted, or a checkpoint begun."""
    if any((run_dir / "checkpoints").glob("global_step_*")):
        return True
    path = Ledger(run_dir).path
    if not path.exists():
        return False
    try:
        return any(isinstance(event, Admitted) for event in read_ledger(path))
    except LedgerError:
        return True  # what it says is judged where the run resumes


def _newest_training(attempts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The attempt that the next one must go on with: an evaluation may have had another layout."""
    trained = [a for a in attempts if not ConfigValues(a["config"]).flag("trainer.val_only")]
    return (trained or attempts)[-1]


def _differences(run_dir: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> Findings:
    findings = Findings()
    was, is_now = ConfigValues(before), ConfigValues(now)
    read = is_now.get("actor_rollout_ref.actor.checkpoint.load_contents", ())
    can_recut = was.flag(f"{_MEGATRON}.dist_ckpt_optim_fully_reshardable")
    may_recut = can_recut or "optimizer" not in read
    for key in FIXED_KEYS if may_recut else (*FIXED_KEYS, *LAYOUT_KEYS):
        if _comparable(was, key) != _comparable(is_now, key):
            findings.problem(
                key,
                f"must stay {was.get(key)!r}, with which the run in {run_dir} was started",
                is_now.get(key),
                "Set it back to resume, or start another run with run.name=... .",
            )
    return findings


def _comparable(values: ConfigValues, key: str) -> Any:
    """The value at ``key``; a path below the run folder, as a path in it, so that the folder may be
    moved, or be named in another way.
    """
    value, run_dir = values.get(key), values.text("run.dir")
    if run_dir is None or not isinstance(value, str) or not Path(value).is_relative_to(run_dir):
        return value
    return ("run.dir", str(Path(value).relative_to(run_dir)))
