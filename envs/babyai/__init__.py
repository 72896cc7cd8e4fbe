"""BabyAI and MiniGrid levels as text. Needs the package ``minigrid`` (extra ``minigrid``)."""

from envs.babyai.actions import project
from envs.babyai.env import NAME, OPTION_RULES, BabyAIEnv
from envs.babyai.expert import expert
from envs.babyai.prompts import PROMPT_FIELDS, build_prompt, corpus
from envs.registry import EnvSpec

SPEC = EnvSpec(
    name=NAME,
    description="Fulfil a mission in a grid world.",
    make=BabyAIEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    corpus=corpus,
    prompt_fields=PROMPT_FIELDS,
)
