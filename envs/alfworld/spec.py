"""ALFWorld's `EnvSpec`. Importing this file needs the packages of the extra ``alfworld``."""

import importlib.util

from envs.alfworld.actions import project
from envs.alfworld.env import OPTION_RULES, AlfworldEnv
from envs.alfworld.expert import expert
from envs.alfworld.games import NAME, SPLIT_FOLDERS, check_data, task_list
from envs.alfworld.prompts import build_prompt, corpus
from envs.registry import EnvSpec

# Looked for and not imported: that takes a second, and only workers need it.
for _package in ("alfworld", "textworld", "fast_downward"):
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)

SPEC = EnvSpec(
    name=NAME,
    description="Fulfil a household task in an ALFWorld game.",
    make=AlfworldEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    corpus=corpus,
    task_list=task_list,
    splits=tuple(SPLIT_FOLDERS),
    check_data=check_data,
)
