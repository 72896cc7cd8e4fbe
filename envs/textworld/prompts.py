"""TextWorld's prompt, and texts for a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import Observation, PastStep, PromptContext
from envs.prompt_template import PromptTemplate, with_past
from envs.tags import format_response

_RULES = """\
{task}
You act by short commands. Commands that are possible now: {actions}.
Think in <think>...</think>, then give one of them in <action>...</action>."""

build_prompt = PromptTemplate(with_past(_RULES), place="envs/textworld/prompts.py")
"""The user message for one step."""

# Words of the games, in sentences of our own: the games are made by who plays them.
_ROOMS = """
attic backyard basement bathroom bedroom bookstore chamber closet cookery corridor cubicle driveway
garden kitchen kitchenette launderette livingroom lounge office pantry parlor playroom restroom
sauna scullery shed shower spare room steam room street studio study supermarket vault workshop
"""
_THINGS = """
apple banana basket block of cheese bowl broom carrot chicken coin counter cookbook desk dish door
fridge fork gate key knife lamp latchkey lettuce lock meal milk onion oven pan parsley pepper plate
pork chop potato salt shelf spoon stove table toilet water
"""
_WAYS = ("north", "south", "east", "west")


def corpus() -> Iterable[str]:
    """Prompts and responses with the words of the games; made up, so that no data are needed."""
    rooms = _ROOMS.split()
    for number, thing in enumerate(_THINGS.split()):
        room, way = rooms[number % len(rooms)], _WAYS[number % 4]
        commands = (
            f"go {way}",
            "inventory",
            "look",
            f"examine {thing}",
            f"open {thing}",
            f"close {thing}",
            f"take {thing} from counter",
            f"put {thing} on table",
            f"insert {thing} into fridge",
            f"unlock {thing} with key",
            f"cook {thing} with oven",
            f"slice {thing} with knife",
            f"dice {thing} with knife",
            f"chop {thing} with knife",
            "prepare meal",
            "eat meal",
        )
        seen = (
            f"-= {room.capitalize()} =-\nYou are in a {room}. You see a {thing}. There is an "
            f"exit to the {way}. Don't worry, there is no door. You need an unguarded exit? You "
            f"should try going {way}. You are carrying nothing. Your score has just gone up by "
            f"one point."
        )
        observation = Observation(
            text=seen,
            anchor=seen,
            admissible_actions=commands,
            task="You are hungry! Let's cook a delicious meal. Check the cookbook in the kitchen "
            f"for the recipe. Find the coin. Pick up the {thing} from the floor of the {room}.",
        )
        past = PastStep(step_idx=0, observation=seen, action=commands[0])
        for history in ((), (past,)):
            context = PromptContext(
                observation=observation, step_idx=len(history), max_steps=50, history=history
            )
            yield build_prompt(context)
        yield from map(format_response, commands)
