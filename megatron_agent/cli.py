"""The ``megatron-agent`` command.

Each command imports what it needs and no more: a typing mistake is reported before anything heavy
loads.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from megatron_agent.env_cli.commands import add_env_commands, parse_option
from megatron_agent.errors import ConfigError, MegatronAgentError

EXIT_CHECK_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
"""The shell's number for a program that Ctrl-C ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program name; ``sys.argv`` by default.

    Returns:
        Exit code: 0 done, 1 for a comparison that failed, an evaluation without an episode that did
        not fail, or warnings of the doctor, 2 for errors of the doctor or a mistake that one of our
        errors explains, 130 for Ctrl-C outside of training steps (`megatron_agent.backend.stop` has
        those); other errors propagate.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and arguments[:1] == ["train"]:  # this process is a run
        from megatron_agent.backend.stop import StopSwitch

        StopSwitch.remember()
    if arguments[:2] == ["retrieval", "serve"]:  # its parser stands behind imports that take time
        from envs.search.server import main as serve

        return serve(arguments[2:], prog="megatron-agent retrieval serve")
    parser = _build_parser()
    options, rest = parser.parse_known_args(arguments)
    # argparse cannot mix options and a list of positional arguments; the remainder are overrides.
    if rest and (not hasattr(options, "overrides") or any(text.startswith("--") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    command: Callable[[argparse.Namespace, Sequence[str]], int] = options.command
    try:
        return command(options, arguments)
    except MegatronAgentError as error:
        sys.stderr.write(f"megatron-agent: {error}\n")
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("megatron-agent: interrupted.\n")
        return EXIT_INTERRUPTED


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="megatron-agent", description="Train language-model agents."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    for name, command, help_text in (
        ("train", _train, "start or resume a run"),
        ("check", _check, "check a configuration and start nothing"),
        ("show", _show, "print the resolved configuration as YAML"),
    ):
        sub = commands.add_parser(name, help=help_text)
        sub.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
        sub.add_argument("--config-name", default="gigpo", help="root below configs/ (gigpo, grpo)")
        sub.set_defaults(command=command)

    doctor = commands.add_parser(
        "doctor", help="examine machine, model, data and configuration before a run"
    )
    doctor.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
    doctor.add_argument("--config-name", default="gigpo", help="root below configs/ (gigpo, grpo)")
    doctor.add_argument("--json", action="store_true", help="the report as JSON")
    doctor.add_argument(
        "--skip", action="append", default=[], metavar="CHECK", help="leave a check out"
    )
    doctor.add_argument(
        "--deep", action="store_true", help="also start Ray, and ask a worker and every node"
    )
    doctor.add_argument("--list", action="store_true", help="name the checks and run none")
    doctor.set_defaults(command=_doctor)

    _add_launch(commands)

    plan = commands.add_parser("plan", help="memory and time of a run, or layouts that fit")
    plan.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
    plan.add_argument("--config-name", default="gigpo", help="root below configs/ (gigpo, grpo)")
    plan.add_argument("--search", action="store_true", help="list layouts that fit, best first")
    plan.add_argument("--json", action="store_true", help="the plan as JSON, in bytes and seconds")
    plan.set_defaults(command=_plan)

    tasks = commands.add_parser("tasks", help="generate task lists (parquet)")
    tasks.add_argument("--env", required=True, help="registered name, see 'env list'")
    tasks.add_argument(
        "--out", required=True, type=Path, help="folder for train.parquet, eval.parquet"
    )
    tasks.add_argument("--num-train", type=int, default=1024)
    tasks.add_argument("--num-eval", type=int, default=200)
    tasks.add_argument("--seed", type=int, default=0)
    tasks.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the environment",
    )
    tasks.set_defaults(command=_tasks)

    add_env_commands(commands)

    credit = commands.add_parser("credit", help="advantages")
    credit_commands = credit.add_subparsers(required=True, metavar="COMMAND")
    credit_check = credit_commands.add_parser(
        "check", help="compare with batches recorded from the reference implementation"
    )
    credit_check.add_argument("file", type=Path, metavar="FILE", help=".json or .json.gz")
    credit_check.add_argument(
        "--tolerance", type=float, default=1e-5, help="largest difference (default: 1e-5)"
    )
    credit_check.set_defaults(command=_credit_check)

    ledger = commands.add_parser("ledger", help="what became of every task of a run")
    ledger_commands = ledger.add_subparsers(required=True, metavar="COMMAND")
    ledger_check = ledger_commands.add_parser(
        "check", help="prove that no task was lost or trained on twice"
    )
    ledger_check.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    ledger_check.add_argument(
        "--max-open-steps",
        type=int,
        metavar="N",
        help="steps that a group of an asynchronous mode may be in flight for (default: 32)",
    )
    ledger_check.set_defaults(command=_ledger_check)

    retrieval = commands.add_parser("retrieval", help="a search engine for environment 'search'")
    retrieval_commands = retrieval.add_subparsers(required=True, metavar="COMMAND")
    retrieval_commands.add_parser("serve", help="search passages over HTTP; --help for options")

    version = commands.add_parser("version", help="versions of this package and of its stack")
    version.set_defaults(command=_version)
    return parser


def _add_launch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    launch = commands.add_parser("launch", help="submit a run to Slurm")
    launch.add_argument("experiment", help="a file of configs/experiment/, by name or by path")
    launch.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
    launch.add_argument("--nodes", type=int, required=True, metavar="N")
    launch.add_argument("--config-name", default="gigpo", help="root below configs/ (gigpo, grpo)")
    launch.add_argument(
        "--chain", type=int, default=1, metavar="K", help="K jobs that follow one another"
    )
    launch.add_argument("--dry-run", action="store_true", help="print the script, submit nothing")
    launch.set_defaults(command=_launch)


def _launch(options: argparse.Namespace, _argv: Sequence[str]) -> int:
    from megatron_agent.slurm.launch import launch

    script, jobs = launch(
        options.experiment,
        options.overrides,
        num_nodes=options.nodes,
        config_name=options.config_name,
        num_jobs=options.chain,
        dry_run=options.dry_run,
    )
    _say(script.rstrip("\n"))
    for job in jobs:
        sys.stderr.write(f"Submitted job {job}.\n")
    return 0


def _train(options: argparse.Namespace, argv: Sequence[str]) -> int:
    from megatron_agent.train import train

    command_line = ["megatron-agent", *argv]
    return train(options.overrides, config_name=options.config_name, argv=command_line)


def _check(options: argparse.Namespace, _argv: Sequence[str]) -> int:
    from megatron_agent.train import checked_config

    config, settings = checked_config(options.overrides, config_name=options.config_name)
    num_groups = config.data.train_batch_size
    num_updates = num_groups // config.actor_rollout_ref.actor.ppo_mini_batch_size
    _say(
        f"The configuration is fine: {settings.env.env_name} with "
        f"{settings.algorithm.adv_estimator}; an iteration is {num_groups} groups of "
        f"{settings.env.rollout.n} episodes and {num_updates} optimizer step(s)."
    )
    return 0


def _doctor(options: argparse.Namespace, _argv: Sequence[str]) -> int:
    from megatron_agent.doctor import RunCase, all_checks, examine

    if options.list:
        for check in all_checks():
            _say(f"{check.name:14} {check.about}{' (--deep)' if check.is_deep else ''}")
        return 0
    case = RunCase.from_overrides(options.overrides, config_name=options.config_name)
    report = examine(case, skip=options.skip, deep=options.deep)
    _say(report.to_json() if options.json else report.text())
    return report.exit_code()


def _plan(options: argparse.Namespace, _argv: Sequence[str]) -> int:
    from megatron_agent.plan.command import run_plan

    text, fits = run_plan(
        options.overrides,
        config_name=options.config_name,
        with_search=options.search,
        as_json=options.json,
    )
    _say(text)
    return 0 if fits else EXIT_CHECK_FAILED


def _ledger_check(options: argparse.Namespace, _argv: Sequence[str]) -> int:
    from megatron_agent.backend.run_ledger import check_run
    from megatron_agent.ledger import MAX_OPEN_STEPS

    bound = MAX_OPEN_STEPS if options.max_open_steps is None else options.max_open_steps
    if bound < 0:
        raise ConfigError("--max-open-steps", "must be >= 0", bound, f"Use {MAX_OPEN_STEPS}.")
    report = check_run(options.run, max_open_steps=bound)
    _say(report.text)
    return EXIT_CHECK_FAILED if report.problems else 0


def _show(options: argparse.Namespace, _argv: Sequence[str]) -> int:
    from omegaconf import OmegaConf

    from megatron_agent.config import compose_config

    config = compose_config(options.overrides, config_name=options.config_name)
    _say(OmegaConf.to_yaml(config).rstrip("\n"))
    return 0


def _tasks(options: argparse.Namespace, _argv: Sequence[str]) -> int:
    env_options = dict(parse_option(text) for text in options.option)
    # Each split is a file, and a task file holds at least one task.
    for name, least in (("num_train", 1), ("num_eval", 1), ("seed", 0)):
        if (value := getattr(options, name)) < least:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(flag, f"must be >= {least}", value, f"Use {least} or more.")
    from megatron_agent.tasks import generate_tasks, write_tasks

    tasks = generate_tasks(
        options.env,
        options.num_train,
        options.num_eval,
        options.seed,
        env_options,
        names={
            "env": "--env",
            "num_train": "--num-train",
            "num_eval": "--num-eval",
            "options": "--option",
        },
    )
    for split in ("train", "eval"):
        chosen = [task for task in tasks if task.split == split]
        path = options.out / f"{split}.parquet"
        write_tasks(path, chosen)
        _say(f"{path}: {len(chosen)} tasks")
    return 0


def _credit_check(options: argparse.Namespace, _argv: Sequence[str]) -> int:
    from megatron_agent.credit_check import check_file

    report = check_file(options.file, options.tolerance)
    _say(report.text())
    return 0 if report.passed else EXIT_CHECK_FAILED


def _version(_options: argparse.Namespace, _argv: Sequence[str]) -> int:
    from megatron_agent.provenance import optional_packages_line, versions

    for name, version in versions().items():
        _say(f"{name} {version}")
    _say(optional_packages_line())
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
