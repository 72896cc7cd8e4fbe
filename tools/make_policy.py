"""Make a tiny policy: tokenizer, random model, and, if asked for, a warm start on expert episodes.

Example::

    python tools/make_policy.py --out models/tiny                                  # random weights
    python tools/make_policy.py --out models/demo --warm-start --target-success 0.4

The result is an ordinary Hugging Face folder. Input that cannot work gives one line on stderr and
exit status 2.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envs.registry import EnvLoadError, EnvNotFoundError, load_env
from megatron_agent.errors import ConfigError, TaskError
from megatron_agent.policy.build import PolicyRecipe, build_policy
from megatron_agent.policy.model import ARCHITECTURES, ModelShape
from megatron_agent.policy.warm_start import WarmStartConfig

_FLAG_OF_KEY = {"learning_rate": "--lr"}
"""Where a flag is not the key with dashes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        for name in args.env:
            load_env(name)
        record = build_policy(_recipe(args), args.out, overwrite=args.overwrite)
    except ConfigError as error:
        flag = _FLAG_OF_KEY.get(error.key, f"--{error.key.replace('_', '-')}")
        return _fail(str(ConfigError(flag, error.rule, error.value, error.remedy)))
    except (EnvNotFoundError, EnvLoadError) as error:
        return _fail(f"--env: {error}")
    except TaskError as error:
        return _fail(f"--train-tasks: {error}")
    print(json.dumps(record, indent=2))
    return 0


def _parser() -> argparse.ArgumentParser:
    shape, warm = _defaults(ModelShape), _defaults(WarmStartConfig)
    recipe = _defaults(PolicyRecipe)
    parser = argparse.ArgumentParser(
        prog="make_policy.py",
        description="Make a tiny policy as a Hugging Face folder.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing policy")
    parser.add_argument("--seed", type=int, default=recipe["seed"])
    parser.add_argument("--num-threads", type=int, default=recipe["num_threads"])

    texts = parser.add_argument_group("environment and tokenizer")
    texts.add_argument(
        "--env",
        nargs="+",
        default=["frozenlake"],
        metavar="NAME",
        help="environments whose texts train the tokenizer; the first is warm-started on",
    )
    texts.add_argument(
        "--env-option",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="options of the first environment, values in JSON, e.g. size=4",
    )
    texts.add_argument("--vocab-size", type=int, default=recipe["vocab_size"])

    model = parser.add_argument_group("model")
    model.add_argument("--arch", default=shape["arch"], help=f"one of {', '.join(ARCHITECTURES)}")
    for key in ("hidden", "layers", "heads", "kv_heads", "intermediate"):
        model.add_argument(f"--{key.replace('_', '-')}", type=int, default=shape[key])
    tying = model.add_mutually_exclusive_group()
    tying.add_argument("--tied", dest="tied", action="store_true", default=shape["tied"])
    tying.add_argument("--untied", dest="tied", action="store_false", default=shape["tied"])

    start = parser.add_argument_group("warm start")
    start.add_argument(
        "--warm-start",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="imitate the environment's expert, then learn to doubt, down to --target-success",
    )
    start.add_argument("--train-tasks", help="task file; without one, tasks are generated")
    start.add_argument("--num-tasks", type=int, default=recipe["num_tasks"])
    for key, default in warm.items():
        flag = _FLAG_OF_KEY.get(key, f"--{key.replace('_', '-')}")
        kind = str if default is None else type(default)
        start.add_argument(flag, dest=key, type=kind, default=default)
    return parser


def _recipe(args: argparse.Namespace) -> PolicyRecipe:
    warm = WarmStartConfig(**{key: getattr(args, key) for key in _defaults(WarmStartConfig)})
    return PolicyRecipe(
        env=args.env[0],
        more_envs=tuple(args.env[1:]),
        env_options=_options(args.env_option),
        shape=ModelShape(
            arch=args.arch,
            hidden=args.hidden,
            layers=args.layers,
            heads=args.heads,
            kv_heads=args.kv_heads,
            intermediate=args.intermediate,
            tied=args.tied,
        ),
        vocab_size=args.vocab_size,
        seed=args.seed,
        warm_start=warm if args.warm_start else None,
        train_tasks=args.train_tasks,
        num_tasks=args.num_tasks,
        num_threads=args.num_threads,
    )


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            if not (key and equals):
                raise ValueError
            options[key] = json.loads(value)
        except ValueError:
            raise ConfigError(
                "env_option", "must be KEY=VALUE with a JSON value", pair, "Write e.g. size=4."
            ) from None
    return options


def _defaults(record: type) -> dict[str, Any]:
    return {field.name: field.default for field in fields(record)}


def _fail(message: str) -> int:
    print(f"make_policy.py: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
