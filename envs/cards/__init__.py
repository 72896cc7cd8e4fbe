"""Card games: NumberLine, EZPoints, Points24 and Blackjack, as text and as pictures."""

from envs.cards.actions import project
from envs.cards.env import NAME, OPTION_RULES, CardsEnv, start_key
from envs.cards.expert import expert
from envs.cards.prompts import build_prompt, corpus
from envs.registry import EnvSpec

SPEC = EnvSpec(
    name=NAME,
    description="Win a hand of a small card game: number line, EZPoints, Points24 or blackjack.",
    make=CardsEnv,
    build_prompt=build_prompt,
    project=project,
    expert=expert,
    option_rules=OPTION_RULES,
    start_key=start_key,
    corpus=corpus,
)
