"""ScienceWorld's `EnvSpec`. Importing this file needs the extra ``scienceworld``."""

import importlib.util

from envs.scienceworld.actions import project, sample_action
from envs.scienceworld.env import OPTION_RULES, ScienceWorldEnv, check_data, task_list
from envs.scienceworld.expert import expert
from envs.scienceworld.prompts import build_prompt, corpus
from envs.scienceworld.tasks import NAME, SPLITS
from envs.spec import EnvSpec

# Looked for and not imported: only workers need them.
for _package in ("scienceworld", "py4j"):
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)

SPEC = EnvSpec(
    name=NAME,
    description="Do an experiment of a science class in a simulated house.",
    make=ScienceWorldEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    corpus=corpus,
    task_list=task_list,
    splits=tuple(SPLITS),
    check_data=check_data,
    sample_action=sample_action,
)
