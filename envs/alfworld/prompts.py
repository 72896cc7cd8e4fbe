"""ALFWorld's prompt, and texts for a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import Observation, PastStep, PromptContext
from envs.prompt_template import PromptTemplate
from envs.tags import format_response

build_prompt = PromptTemplate(
    """\
You are in a house and act by short commands. Your task: {task}
You have made {step_count} steps. The last {history_length}:
{history}
Step {step} of at most {max_steps}. What you see now:
{observation}
Commands that are possible now: {actions}
Think about what to do next in <think>...</think>, then give one of these commands in \
<action>...</action>.
=== first step ===
You are in a house and act by short commands. Your task: {task}
What you see now:
{observation}
Commands that are possible now: {actions}
Think about what to do next in <think>...</think>, then give one of these commands in \
<action>...</action>.
""",
    place="the ALFWorld prompt",
)

# Words of the games, in sentences of our own: the games themselves belong to who downloads them.
_THINGS = """
alarmclock apple book bowl box bread butterknife candle cd cellphone cloth creditcard cup dishsponge
egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug newspaper pan pen
pencil peppershaker pillow plate pot potato remotecontrol saltshaker soapbar soapbottle spatula
spoon spraybottle statue tissuebox toiletpaper tomato vase watch wateringcan winebottle
"""
_PLACES = """
armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer
dresser fridge garbagecan handtowelholder laundryhamper microwave ottoman safe shelf sidetable
sinkbasin sofa stoveburner toaster toilet toiletpaperhanger towelholder
"""


def corpus() -> Iterable[str]:
    """Prompts and responses with the words of the games; made up, so that no data are needed."""
    places = _PLACES.split()
    for number, thing in enumerate(_THINGS.split()):
        place, other = places[number % len(places)], places[(number + 9) % len(places)]
        commands = (
            f"examine {place} 1",
            f"go to {other} {number % 9 + 1}",
            "inventory",
            "look",
            f"open {place} 1",
            f"close {place} 1",
            f"take {thing} 1 from {place} 1",
            f"move {thing} 1 to {place} 1",
            f"clean {thing} 1 with sinkbasin 1",
            f"heat {thing} 1 with microwave 1",
            f"cool {thing} 1 with fridge 1",
            "use desklamp 1",
        )
        arrived = f"You arrive at {place} 1. On the {place} 1, you see a {thing} 1."
        observation = Observation(
            text=arrived,
            anchor=arrived,
            admissible_actions=commands,
            task=f"put a clean {thing} in {other}.",
        )
        past = PastStep(step_idx=0, observation=arrived, action=commands[1])
        for history in ((), (past,)):
            yield build_prompt(
                PromptContext(
                    observation=observation,
                    step_idx=len(history),
                    max_steps=50,
                    history=history,
                )
            )
        yield from map(format_response, commands)
