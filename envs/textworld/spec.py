"""TextWorld's `EnvSpec`. Importing this file needs the extra ``textworld`` (or ``alfworld``)."""

import importlib.util

from envs.spec import EnvSpec
from envs.textworld.actions import project
from envs.textworld.env import OPTION_RULES, TextWorldEnv
from envs.textworld.expert import expert
from envs.textworld.games import NAME, SPLITS, check_data, task_list
from envs.textworld.prompts import build_prompt, corpus

# Looked for and not imported: that takes a second, and only workers need it.
for _package in ("textworld", "jericho"):
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)

SPEC = EnvSpec(
    name=NAME,
    description="Win a generated text game: cook a meal, find a coin, hunt a treasure.",
    make=TextWorldEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    corpus=corpus,
    task_list=task_list,
    splits=SPLITS,
    check_data=check_data,
)
