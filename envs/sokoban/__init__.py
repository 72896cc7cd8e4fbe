"""Sokoban: push boxes onto targets. Wrong pushes cannot be undone, so looking ahead pays."""

from envs.registry import EnvSpec
from envs.sokoban.actions import project
from envs.sokoban.env import NAME, OPTION_RULES, SokobanEnv, start_key
from envs.sokoban.expert import expert
from envs.sokoban.prompts import build_prompt, corpus

SPEC = EnvSpec(
    name=NAME,
    description="Push every box of a Sokoban level onto a target.",
    make=SokobanEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    start_key=start_key,
    corpus=corpus,
)
