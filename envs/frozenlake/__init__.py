"""FrozenLake: walk over ice to the goal, around the holes. The smallest environment, and the first
to try.
"""

from envs.frozenlake.actions import project
from envs.frozenlake.env import NAME, OPTION_RULES, FrozenLakeEnv, start_key
from envs.frozenlake.expert import expert
from envs.frozenlake.prompts import build_prompt, corpus
from envs.registry import EnvSpec

SPEC = EnvSpec(
    name=NAME,
    description="Cross a frozen lake to the goal without falling into a hole.",
    make=FrozenLakeEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    start_key=start_key,
    corpus=corpus,
)
