"""CliffWalking: the shortest way is the dangerous one."""

from envs.cliffwalking.actions import project
from envs.cliffwalking.env import NAME, OPTION_RULES, TASK, CliffWalkingEnv, start_key
from envs.cliffwalking.expert import expert
from envs.cliffwalking.prompts import PROMPT_FIELDS, build_prompt, corpus
from envs.registry import EnvSpec

SPEC = EnvSpec(
    name=NAME,
    description=TASK,
    make=CliffWalkingEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    start_key=start_key,
    corpus=corpus,
    prompt_fields=PROMPT_FIELDS,
)
