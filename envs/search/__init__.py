"""Search: answer questions that take more than one look-up in a collection of texts."""

from envs.search.actions import format_response, project
from envs.search.env import (
    NAME,
    OPTION_RULES,
    SPLITS,
    SearchEnv,
    check_data,
    start_key,
    task_list,
)
from envs.search.expert import expert
from envs.search.prompts import build_prompt, corpus
from envs.spec import EnvSpec

SPEC = EnvSpec(
    name=NAME,
    description="Answer a question by searching a collection of texts.",
    make=SearchEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    format_response=format_response,
    option_rules=OPTION_RULES,
    start_key=start_key,
    corpus=corpus,
    task_list=task_list,
    splits=SPLITS,
    check_data=check_data,
)
