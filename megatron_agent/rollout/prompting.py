"""What a prompt of one step is made of: the observation, the memory, and the environment's words.

The rollout and the warm start of a policy (`megatron_agent.policy`) both make their prompts here,
so that a policy is warm-started on the prompts that it will get.
"""

from __future__ import annotations

from envs.base import Observation, ParsedAction, PastStep, PromptContext, StepOutcome
from megatron_agent.rollout.memory import Memory, memory_notes
from megatron_agent.rollout.parts import Behaviour


def step_prompt(
    spec: Behaviour, memory: Memory, observation: Observation, *, step_idx: int, max_steps: int
) -> str:
    """The user message of one step. Raises whatever ``spec`` and ``memory`` raise.

    Where the environment's prompt does not show the memory's notes itself, they come first: the
    present stays next to where the response begins.
    """
    notes = memory_notes(memory)
    prompt = spec.build_prompt(
        PromptContext(
            observation=observation,
            step_idx=step_idx,
            max_steps=max_steps,
            history=memory.fetch(observation.text),
            notes=notes,
        )
    )
    return prompt if not notes or notes in prompt else f"{notes}\n\n{prompt}"


def past_step(
    step_idx: int,
    observation: Observation,
    response: str,
    parsed: ParsedAction,
    outcome: StepOutcome,
) -> PastStep:
    """A step that was made, as a memory stores it.

    Args:
        observation: before the action.
        response: everything the agent said.
        parsed: what was read from it.
        outcome: what came of it.
    """
    return PastStep(
        step_idx=step_idx,
        observation=observation.text,
        action=parsed.action,
        reward=float(outcome.reward),
        response=response,
        action_valid=parsed.valid and outcome.action_valid,
    )
