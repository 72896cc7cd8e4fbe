"""Blackjack: one decision after another under chance; even the best player loses often."""

from envs.blackjack.actions import project
from envs.blackjack.env import NAME, OPTION_RULES, TASK, BlackjackEnv, start_key
from envs.blackjack.expert import expert
from envs.blackjack.prompts import build_prompt, corpus
from envs.registry import EnvSpec

SPEC = EnvSpec(
    name=NAME,
    description=TASK,
    make=BlackjackEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    start_key=start_key,
    corpus=corpus,
)
