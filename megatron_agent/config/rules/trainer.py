"""Rules of the loop: how long, how often, and which of verl's parts our own code needs."""

from __future__ import annotations

from collections.abc import Mapping

from megatron_agent.config.findings import Findings, nearest_key
from megatron_agent.config.values import ConfigValues
from megatron_agent.types import AGENT_NAME

REQUIRED: Mapping[str, tuple[object, str]] = {
    "actor_rollout_ref.actor.strategy": ("megatron", "the engine this package runs on"),
    "actor_rollout_ref.rollout.name": ("sglang", "the server this package runs on"),
    "actor_rollout_ref.rollout.agent.default_agent_loop": (
        AGENT_NAME,
        "it gives the rows that credit needs",
    ),
    # A contract test says when this changes.
    "actor_rollout_ref.actor.checkpoint.async_save": (
        False,
        "verl seeks the queue of writes where this Megatron has none, and nothing would end it",
    ),
    "trainer.use_v1": (True, "credit is computed in verl's V1 trainer"),
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "trainer.v1.trainer_mode": ("sync", "colocate_async", "separate_async"),
    "trainer.device": ("cpu", "cuda"),
    "actor_rollout_ref.actor.loss_agg_mode": (
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
}
OPTIM_KEY = "actor_rollout_ref.actor.optim"
FREQUENCIES: tuple[str, ...] = ("trainer.test_freq", "trainer.save_freq")
NOT_NEGATIVE: tuple[str, ...] = (
    f"{OPTIM_KEY}.lr",
    "actor_rollout_ref.actor.entropy_coeff",
    "actor_rollout_ref.actor.kl_loss_coef",
    f"{OPTIM_KEY}.weight_decay",
    f"{OPTIM_KEY}.clip_grad",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "trainer.stop_grace_s",
)
LOGGERS: tuple[str, ...] = (
    "console",
    "tensorboard",
    "wandb",
    "mlflow",
    "swanlab",
    "vemlp_wandb",
    "clearml",
    "trackio",
    "file",
    "rl_insight",
)
"""What verl's ``Tracking`` knows (``supported_backend``)."""


def check_trainer(values: ConfigValues, findings: Findings) -> None:
    """Counts and coefficients are in range; verl's parts are those our code extends."""
    _check_name(values, findings)
    num_steps = values.integer("trainer.total_training_steps")
    if num_steps is not None and num_steps < 1:
        findings.problem("trainer.total_training_steps", "must be >= 1", num_steps, "Use 100.")
    for key in FREQUENCIES:
        frequency = values.integer(key)
        if frequency is not None and frequency != -1 and frequency < 1:
            findings.problem(key, "must be >= 1, or -1 for never", frequency, "Use 10.")
    for key in NOT_NEGATIVE:
        number = values.number(key)
        if number is not None and not number >= 0:
            findings.problem(key, "must be >= 0", number, "Drop the sign.")
    num_kept = values.integer("trainer.max_ckpt_to_keep")
    if num_kept is not None and num_kept < 1:
        rule = "must be >= 1, or null to keep all"
        findings.problem("trainer.max_ckpt_to_keep", rule, num_kept, "Use 2.")
    poll_interval_s = values.number("trainer.poll_interval_s")
    if poll_interval_s is not None and not poll_interval_s > 0:
        findings.problem("trainer.poll_interval_s", "must be > 0", poll_interval_s, "Use 0.1.")
    for key, (required, reason) in REQUIRED.items():
        if values.get(key) != required:
            rule = f"must be {required!r} ({reason})"
            findings.problem(key, rule, values.get(key), "Leave it at that.")
    for key, choices in CHOICES.items():
        _check_choice(key, values.get(key), choices, findings)
    _check_loggers(values, findings)
    _check_schedule(values, findings)


def _check_schedule(values: ConfigValues, findings: Findings) -> None:
    """What Megatron's schedule of the learning rate would assert in every rank, without a word."""
    rate = values.number(f"{OPTIM_KEY}.lr")
    if rate is None or rate < 0:  # reported elsewhere
        return
    for name in ("lr_warmup_init", "min_lr"):
        other = values.number(f"{OPTIM_KEY}.{name}")
        if other is not None and not 0 <= other <= rate:
            rule = f"must be in [0, {OPTIM_KEY}.lr], here [0, {rate:g}]"
            findings.problem(f"{OPTIM_KEY}.{name}", rule, other, "Lower it, or raise the rate.")
    num_warmup = values.integer(f"{OPTIM_KEY}.lr_warmup_steps")
    length_key = f"{OPTIM_KEY}.lr_decay_steps"
    num_steps = values.integer(length_key)
    if num_steps is None:
        length_key = "trainer.total_training_steps"
        num_steps = values.integer(length_key)
    if num_warmup is not None and num_steps is not None and num_warmup >= max(num_steps, 1):
        findings.problem(
            f"{OPTIM_KEY}.lr_warmup_steps",
            f"must be < {length_key}, which is {num_steps}",
            num_warmup,
            f"Warm up for fewer iterations, or set {OPTIM_KEY}.lr_decay_steps.",
        )


def _check_name(values: ConfigValues, findings: Findings) -> None:
    # It names a folder, a job and a file of the job's.
    name = values.text("run.name")
    if name is None:
        return
    if name.strip() in ("", ".", "..") or "/" in name or not name.isprintable():
        findings.problem(
            "run.name", "must be a name, without a slash or a line break", name,
            "E.g. run.name=first; where the folder lies is run.dir.",
        )  # fmt: skip


def _check_loggers(values: ConfigValues, findings: Findings) -> None:
    loggers = values.get("trainer.logger")
    if loggers is None:
        return  # reported by check_tree
    if not isinstance(loggers, list) or not loggers:
        rule = "must be a list of one logger or more"
        findings.problem("trainer.logger", rule, loggers, "Use [console].")
        return
    for logger in loggers:
        _check_choice("trainer.logger", logger, LOGGERS, findings)


def _check_choice(key: str, choice: object, choices: tuple[str, ...], findings: Findings) -> None:
    if choice in choices:
        return
    near = nearest_key(str(choice), choices)
    remedy = f"Did you mean {near!r}?" if near else "Choose one of them."
    findings.problem(key, f"must be one of {', '.join(choices)}", choice, remedy)
