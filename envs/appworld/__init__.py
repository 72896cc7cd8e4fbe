"""AppWorld: everyday tasks in nine apps, done by writing Python. Experimental: see its page."""

from envs.appworld.actions import format_response, project
from envs.appworld.env import OPTION_RULES, AppWorldEnv, sample_action
from envs.appworld.prompts import build_prompt, corpus
from envs.appworld.tasks import DATASETS, NAME, check_data, task_list
from envs.spec import EnvSpec

SPEC = EnvSpec(
    name=NAME,
    description="Do an everyday task in apps by writing Python.",
    make=AppWorldEnv,
    build_prompt=build_prompt,
    project=project,
    format_response=format_response,
    option_rules=OPTION_RULES,
    corpus=corpus,
    task_list=task_list,
    splits=tuple(DATASETS),
    check_data=check_data,
    sample_action=sample_action,
)
