"""WebShop: buy the product that an instruction asks for, among those of a real shop."""

from envs.spec import EnvSpec
from envs.webshop.actions import project
from envs.webshop.env import (
    NAME,
    OPTION_RULES,
    SPLITS,
    WebShopEnv,
    check_data,
    start_key,
    task_list,
)
from envs.webshop.expert import expert
from envs.webshop.prompts import PROMPT_FIELDS, build_prompt, corpus

SPEC = EnvSpec(
    name=NAME,
    description="Find and buy the product that an instruction asks for.",
    make=WebShopEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    start_key=start_key,
    corpus=corpus,
    task_list=task_list,
    splits=SPLITS,
    check_data=check_data,
    prompt_fields=PROMPT_FIELDS,
)
