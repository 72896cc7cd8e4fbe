"""The arguments of ``megatron-agent env ...`` and what each command does with them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from megatron_agent.errors import ConfigError, RegistryError, TaskError

_FAILED = 1
_DEFAULT_MAX_STEPS = 50


def add_env_commands(commands: Any) -> None:
    """Add ``env`` to the subparsers of the command line."""
    env = commands.add_parser("env", help="environments: list, check, play, evaluate")
    env_commands = env.add_subparsers(required=True, metavar="COMMAND")

    listing = env_commands.add_parser("list", help="registered names, with their options")
    listing.add_argument("--names", action="store_true", help="names alone, one a line")
    listing.set_defaults(command=_list)

    check = env_commands.add_parser(
        "check", help="whether an environment keeps the contract, and what it costs"
    )
    _add_name(check)
    check.add_argument("--n", type=int, default=16, help="members of a group (default: 16)")
    check.add_argument("--tasks", type=int, default=3, help="starts that are tried (default: 3)")
    check.add_argument(
        "--resets", type=int, default=500, help="resets made to find a leak (default: 500)"
    )
    check.add_argument(
        "--deadline", type=int, default=300, help="seconds for each check (default: 300)"
    )
    check.add_argument("--json", action="store_true", help="the report as JSON")
    check.set_defaults(command=_check)

    play = env_commands.add_parser("play", help="act yourself in the terminal")
    _add_name(play)
    play.add_argument("--split", default="train", help="split of the task (default: train)")
    play.add_argument("--seed", type=int, default=0, help="which task (default: 0)")
    play.set_defaults(command=_play)

    evaluate = env_commands.add_parser("eval", help="let an agent play held-out tasks")
    _add_name(evaluate)
    evaluate.add_argument(
        "--policy",
        required=True,
        help="random, expert, or openai:BASE_URL:MODEL (its key from $OPENAI_API_KEY)",
    )
    evaluate.add_argument("--split", default="eval", help="split of the tasks (default: eval)")
    evaluate.add_argument("--episodes", type=int, default=100, help="at most (default: 100)")
    evaluate.add_argument("--seed", type=int, default=0, help="which tasks (default: 0)")
    evaluate.add_argument("--max-steps", type=int, help="default: of configs/env/NAME.yaml, or 50")
    evaluate.add_argument("--history-length", type=int, default=2, help="(default: 2)")
    evaluate.add_argument("--memory", default="window", help="memory module (default: window)")
    evaluate.add_argument("--prompt-file", help="prompt template instead of the environment's")
    evaluate.add_argument("--temperature", type=float, default=1.0, help="of a model (default: 1)")
    evaluate.add_argument("--max-tokens", type=int, default=512, help="of a model (default: 512)")
    evaluate.add_argument("--parallel", type=int, default=8, help="episodes at a time (default: 8)")
    evaluate.add_argument("--json", action="store_true", help="figures and episodes as JSON")
    evaluate.set_defaults(command=_eval)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a name, gym:ID or package.module:Class")
    parser.add_argument("--data", metavar="DIR", help="folder of its data (its option data_dir)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of it"
    )


def parse_option(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` with a YAML value; raises ConfigError."""
    import yaml

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError("--option", "must be NAME=VALUE", text, "Write for example size=4.")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        remedy = "Write a plain value, for example size=4."
        raise ConfigError("--option", "must have a value in YAML", text, remedy) from error


def _spec_and_options(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    from envs.registry import EnvCollisionError, EnvLoadError, EnvNotFoundError, load_env

    try:
        spec = load_env(arguments.name)
    except (EnvNotFoundError, EnvLoadError, EnvCollisionError) as error:
        raise RegistryError(str(error)) from error
    options = dict(parse_option(text) for text in arguments.option)
    if arguments.data is not None:
        options["data_dir"] = arguments.data
    try:
        spec.validate_options(options)
    except ValueError as error:
        raise ConfigError("--option", f"must suit the environment ({error})", options,
                          "'megatron-agent env list' names the options.") from error  # fmt: skip
    return spec, options


def _drawn_tasks(spec: Any, options: Any, arguments: argparse.Namespace, num: int) -> list[Any]:
    """Tasks to play, at least one; raises TaskError, also when their data are not there."""
    from envs.data import EnvDataError
    from megatron_agent.tasks import draw_tasks

    tasks = draw_tasks(spec.name, arguments.split, num, arguments.seed, options)
    if not tasks:
        raise TaskError(f"environment {spec.name!r} has no task in split {arguments.split!r}.")
    try:
        # Of these tasks: somebody may have the games of one split alone.
        spec.require_data(tasks[0].options)
    except EnvDataError as error:
        raise TaskError(str(error)) from error
    return tasks


def _positive(value: int, flag: str) -> None:
    if value < 1:
        raise ConfigError(flag, "must be >= 1", value, "Use a larger number.")


def _list(arguments: argparse.Namespace, _argv: Sequence[str]) -> int:
    from envs.registry import EnvLoadError, env_names, load_env

    for name in env_names():
        if arguments.names:
            _say(name)
            continue
        try:
            spec = load_env(name)
        except EnvLoadError as error:
            _say(f"{name}: cannot be loaded here ({error})")
            continue
        _say(f"{name}: {spec.description}")
        for option, rule in spec.option_rules.items():
            _say(f"  {option} = {rule.default!r}: {rule.rule}")
    return 0


def _check(arguments: argparse.Namespace, _argv: Sequence[str]) -> int:
    from envs.check_report import run_check

    for flag in ("n", "tasks", "resets", "deadline"):
        _positive(getattr(arguments, flag), f"--{flag}")
    spec, options = _spec_and_options(arguments)
    report = run_check(
        spec,
        num_members=arguments.n,
        num_tasks=arguments.tasks,
        num_resets=arguments.resets,
        options=options,
        deadline_s=arguments.deadline,
    )
    if arguments.json:
        _say(json.dumps(report.to_dict(), indent=2))
    else:
        for line in report.lines():
            _say(line)
    return 0 if report.is_fine else _FAILED


def _play(arguments: argparse.Namespace, _argv: Sequence[str]) -> int:
    from megatron_agent.env_cli.play import play

    spec, options = _spec_and_options(arguments)
    (task,) = _drawn_tasks(spec, options, arguments, 1)
    play(spec, task, ask=input, say=_say)
    return 0


def _eval(arguments: argparse.Namespace, _argv: Sequence[str]) -> int:
    from envs.prompt_template import TemplateError, with_prompt_file
    from megatron_agent.env_cli.agents import ModelAgent, make_agent
    from megatron_agent.env_cli.evaluate import EvalSettings, play_tasks, summarise, summary_lines
    from megatron_agent.rollout.memory import load_memory

    for flag in ("episodes", "parallel", "max_tokens"):
        _positive(getattr(arguments, flag), f"--{flag.replace('_', '-')}")
    spec, options = _spec_and_options(arguments)
    try:
        spec = with_prompt_file(spec, arguments.prompt_file)
    except TemplateError as error:
        raise ConfigError(
            "--prompt-file", f"must be a prompt template ({error})", arguments.prompt_file,
            "Correct the file.",
        ) from error  # fmt: skip
    agent = make_agent(
        arguments.policy,
        spec,
        temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
    )
    load_memory(arguments.memory, arguments.history_length)
    settings = EvalSettings(
        max_steps=_max_steps(arguments),
        history_length=arguments.history_length,
        memory=arguments.memory,
        num_parallel=arguments.parallel,
        seed=arguments.seed,
    )
    tasks = _drawn_tasks(spec, options, arguments, arguments.episodes)
    if isinstance(agent, ModelAgent):
        agent.server.complete("Say yes.", seed=0)  # what is wrong is told once, before all episodes
    episodes = play_tasks(spec, agent, tasks, settings)
    summary = {
        "env": spec.name,
        "split": arguments.split,
        "policy": arguments.policy,
        "max_steps": settings.max_steps,
        **summarise(episodes),
    }
    if arguments.json:
        played = [_episode_record(episode) for episode in episodes]
        _say(json.dumps({**summary, "episodes": played}, indent=2))
    else:
        _say(f"{spec.name}, split {arguments.split}, {arguments.policy}")
        for line in summary_lines(summary):
            _say(line)
    return _FAILED if all(episode.failure for episode in episodes) else 0


def _max_steps(arguments: argparse.Namespace) -> int:
    if arguments.max_steps is not None:
        _positive(arguments.max_steps, "--max-steps")
        return int(arguments.max_steps)
    import yaml

    from megatron_agent.config.overrides import CONFIGS_DIR

    path = CONFIGS_DIR / "env" / f"{arguments.name}.yaml"
    if ":" in arguments.name or not path.is_file():
        return _DEFAULT_MAX_STEPS
    section: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")).get("env") or {}
    return int(section.get("max_steps", _DEFAULT_MAX_STEPS))


def _episode_record(episode: Any) -> dict[str, Any]:
    return {
        "task_id": episode.task_id,
        "success": episode.success,
        "return": episode.episode_return,
        "num_steps": episode.num_steps,
        "failure": episode.failure,
        "actions": [turn.action for turn in episode.turns_T],
    }


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
