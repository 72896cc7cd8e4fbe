"""TextWorldExpress's `EnvSpec`. Importing this file needs the extra ``textworld-express``."""

import importlib.util

from envs.spec import EnvSpec
from envs.textworld_express.actions import project
from envs.textworld_express.env import (
    FOLDS,
    NAME,
    OPTION_RULES,
    TextWorldExpressEnv,
    check_data,
    task_list,
)
from envs.textworld_express.expert import expert
from envs.textworld_express.prompts import build_prompt, corpus

# Looked for and not imported: only workers need them.
for _package in ("textworld_express", "py4j"):
    if importlib.util.find_spec(_package) is None:
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)

SPEC = EnvSpec(
    name=NAME,
    description="Win a small text game: cook, tidy up, find coins, follow a map.",
    make=TextWorldExpressEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    corpus=corpus,
    task_list=task_list,
    splits=tuple(FOLDS),
    check_data=check_data,
)
