"""Taxi: fetch a passenger and drive to where they want to go. Long plans, sparse success."""

from envs.registry import EnvSpec
from envs.taxi.actions import project
from envs.taxi.env import NAME, OPTION_RULES, TASK, TaxiEnv, start_key
from envs.taxi.expert import expert
from envs.taxi.prompts import PROMPT_FIELDS, build_prompt, corpus

SPEC = EnvSpec(
    name=NAME,
    description=TASK,
    make=TaxiEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    start_key=start_key,
    corpus=corpus,
    prompt_fields=PROMPT_FIELDS,
)
