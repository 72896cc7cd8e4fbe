"""Hops 3-6 on verl's agent loop: one coroutine per session, one training row per step.

verl calls :meth:`GymStepsAgentLoop.run` once per session of a group. The work is done in
``megatron_agent.rollout``; here its parts are joined to verl's tokenizer, LLM client and row
format.

Nothing that goes wrong inside a session may disappear: verl only logs an exception of ``run`` and
drops the session, which would leave its group short without a word. So ``run`` always returns rows.
A failed episode returns the steps it had (its failure is a field of the rows); a failure that must
end the run travels in ``extra_fields["fatal"]`` and the trainer raises it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from megatron_agent.backend.env_workers import RolloutResources
from megatron_agent.backend.failure_rate import LOST_PROCESS
from megatron_agent.backend.lost_process import is_lost_process
from megatron_agent.backend.vision import check_response, encode_message, require_eyes
from megatron_agent.errors import GenerationError, GroupStartError
from megatron_agent.rollout.env_timings import row_timings
from megatron_agent.rollout.episode import run_episode
from megatron_agent.rollout.memory import load_memory
from megatron_agent.rollout.parts import MessageContent
from megatron_agent.rollout.rescoring import (
    episode_facts,
    rescored,
    with_overlong_penalty,
)
from megatron_agent.rollout.samples import episode_to_samples
from megatron_agent.tasks import EnvTask, task_from_extra_info
from megatron_agent.types import (
    AGENT_NAME,
    EncodedPrompt,
    Episode,
    Generation,
    StepSample,
    Turn,
)

logger = logging.getLogger(__name__)


@register(AGENT_NAME)
class GymStepsAgentLoop(AgentLoopBase):
    """Plays one session of one task and returns a row per step."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        """Play one session.

        Args:
            sampling_params: verl's sampling parameters (temperature, top_p, logprobs ...).
            **kwargs: fields of the dataset row plus ``uid``, ``session_id`` and ``global_steps``.

        Returns:
            One output per step, in step order; one fully masked output if the session has no step.
        """
        uid, session_id = str(kwargs["uid"]), int(kwargs["session_id"])
        global_steps = int(kwargs["global_steps"])
        try:
            task = task_from_extra_info(
                dict(kwargs["extra_info"]), code_names=[self.config.env.env_name]
            )
            episode = await self._play(task, uid, session_id, sampling_params)
            episode = await self._rescore(episode, kwargs)
            RolloutResources.journal(self.config).append(
                episode, global_step=global_steps, attempt=RolloutResources.attempt(self.config)
            )
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # GroupStartError: the group is not a group. Anything else here is a bug of ours or of
            # an environment's pure functions, or a disk that is full, and not an episode failure:
            # rows of it must not be trained on.
            logger.exception("Session %s of group %s could not be played.", session_id, uid)
            kind = _fatal_kind(error)
            output = self._masked_output(uid, session_id, global_steps, failure=f"{kind}: {error}")
            output.extra_fields["fatal"] = f"{kind}: {error}"
            output.extra_fields["reward_extra_info"]["fatal"] = f"{kind}: {error}"
            return [output]
        samples = episode_to_samples(episode)
        outputs = [
            self._output(sample, turn, global_steps, failure=episode.failure)
            for sample, turn in zip(samples, episode.turns_T, strict=True)
        ] or [self._masked_output(uid, session_id, global_steps, failure=episode.failure)]
        for output, timings in zip(outputs, row_timings(episode), strict=True):
            output.extra_fields.update(timings)
        return outputs

    async def _play(
        self, task: EnvTask, uid: str, session_id: int, sampling_params: dict[str, Any]
    ) -> Episode:
        env_config = self.config.env
        if env_config.images:
            require_eyes(self)
        pool = await RolloutResources.pool(self.config)
        session = await pool.open_session(task, group_id=uid, session_id=session_id)
        request_id = f"{uid}_{session_id}"  # one id per session keeps its turns on one server

        async def generate(prompt: EncodedPrompt, _request_id: str) -> Generation:
            timeout_s = float(env_config.generate_timeout_s)
            try:
                output = await asyncio.wait_for(
                    self.server_manager.generate(
                        request_id=request_id,
                        prompt_ids=list(prompt.ids_L),
                        sampling_params=dict(sampling_params),
                        image_data=list(prompt.images) or None,
                    ),
                    timeout_s,
                )
            except TimeoutError:
                raise GenerationError(
                    f"the inference server gave no response in {timeout_s:g} s"
                ) from None
            return self._generation(output)

        return await run_episode(
            task=task,
            uid=uid,
            session_id=session_id,
            session=session,
            spec=RolloutResources.env_spec(self.config, task.env),
            memory=load_memory(env_config.memory, env_config.history_length),
            encode=self._encode,
            generate=generate,
            max_steps=int(env_config.max_steps),
            max_prompt_length=int(self.rollout_config.prompt_length),
            with_images=bool(env_config.images),
        )

    async def _rescore(self, episode: Episode, row: Mapping[str, Any]) -> Episode:
        """The episode with the rewards of ``reward.custom_reward_function``, if there is one, and
        with the punishment for over-long responses, if that is asked for.

        A failed episode is rescored too: the function sees the failure, and judges.
        """
        if not episode.turns_T:
            return episode  # no step, no reward
        episode = await self._judged(episode, row)
        penalty = self.config.algorithm.overlong_penalty
        if penalty.coef == 0:
            return episode
        return with_overlong_penalty(
            episode,
            max_length=int(self.rollout_config.response_length),
            buffer_length=int(penalty.buffer_length),
            coef=float(penalty.coef),
        )

    async def _judged(self, episode: Episode, row: Mapping[str, Any]) -> Episode:
        function = RolloutResources.reward_function(self.config)
        if function is None:
            return episode
        arguments = {
            "data_source": row["data_source"],
            "solution_str": episode.turns_T[-1].generation.text,
            "ground_truth": row["reward_model"]["ground_truth"],
            "extra_info": {**row["extra_info"], "episode": episode_facts(episode)},
        }
        if inspect.iscoroutinefunction(function):
            return rescored(episode, await function(**arguments))
        # In a thread: one slow judge must not hold up the other episodes of this process.
        return rescored(episode, await asyncio.to_thread(function, **arguments))

    async def _encode(self, content: MessageContent) -> EncodedPrompt:
        return await encode_message(self, content)

    def _generation(self, output: Any) -> Generation:
        num_tokens = int(self.rollout_config.response_length)
        token_ids_L = tuple(output.token_ids[:num_tokens])
        log_probs_L = tuple(output.log_probs[:num_tokens]) if output.log_probs else None
        check_response(self.processor, token_ids_L)
        return Generation(
            token_ids_L=token_ids_L,
            log_probs_L=log_probs_L,
            text=self.tokenizer.decode(token_ids_L, skip_special_tokens=True),
            weight_version_min=output.extra_fields.get("min_global_steps"),
            weight_version_max=output.extra_fields.get("max_global_steps"),
            stop_reason=output.stop_reason or "stop",
        )

    def _output(
        self, sample: StepSample, turn: Turn | None, global_steps: int, *, failure: str
    ) -> AgentLoopOutput:
        wants_log_probs = bool(self.rollout_config.calculate_log_probs)
        has_log_probs = wants_log_probs and sample.log_probs_L is not None
        return AgentLoopOutput(
            prompt_ids=list(sample.prompt_ids_L),
            response_ids=list(sample.response_ids_L),
            response_mask=[0 if turn is None else 1] * len(sample.response_ids_L),
            response_logprobs=list(sample.log_probs_L or ()) if has_log_probs else None,
            # verl makes the row's tensors of them and forgets them.
            multi_modal_data={"images": list(sample.images)} if sample.images else None,
            # verl copies the last output's score to all outputs of a session. Ours are equal
            # already: the return of the episode.
            reward_score=sample.episode_return,
            num_turns=2,
            metrics=AgentLoopMetrics()
            if turn is None
            else AgentLoopMetrics(generate_sequences=turn.generate_s, tool_calls=turn.env_s),
            extra_fields=_extra_fields(sample, global_steps, failure=failure)
            | self._anchor_text(sample, turn),
        )

    def _anchor_text(self, sample: StepSample, turn: Turn | None) -> dict[str, Any]:
        """The anchor's text travels only where somebody reads it: it can be long."""
        algorithm = self.config.algorithm
        if not (algorithm.gigpo.enable_similarity or algorithm.get("needs_anchor_text", False)):
            return {}
        if turn is None:
            return {"anchor_text": sample.anchor}
        return {"anchor_text": turn.anchor_text}

    def _masked_output(
        self, uid: str, session_id: int, global_steps: int, *, failure: str
    ) -> AgentLoopOutput:
        """The row of a session without steps: one token that is not trained on. The session still
        counts in its group, with return 0; its anchor equals no other.
        """
        eos = int(self.tokenizer.eos_token_id)
        sample = StepSample(
            uid=uid,
            session_id=session_id,
            step_idx=0,
            prompt_ids_L=(eos,),
            response_ids_L=(eos,),
            log_probs_L=(0.0,),
            anchor=f"no-step/{uid}/{session_id}",
            step_reward=0.0,
            episode_return=0.0,
            episode_length=0,
            action_valid=True,  # nothing was said, so nothing is charged
            success=False,
            failed=True,
            weight_version_min=None,
            weight_version_max=None,
        )
        return self._output(sample, None, global_steps, failure=failure)


def _fatal_kind(error: Exception) -> str:
    if isinstance(error, GroupStartError):
        return "group_start"
    return LOST_PROCESS if is_lost_process(error) else type(error).__name__


def _extra_fields(sample: StepSample, global_steps: int, *, failure: str) -> dict[str, Any]:
    """What travels with a row. ``reward_extra_info`` must exist when a session has several rows:
    without it verl raises after the episode and drops the session.
    """
    return {
        "anchor": sample.anchor,
        "step_reward": sample.step_reward,
        "episode_return": sample.episode_return,
        "episode_length": sample.episode_length,
        "step_idx": sample.step_idx,
        "action_valid": sample.action_valid,
        "success": sample.success,
        "failed": sample.failed,
        "failure": failure,
        "fatal": "",
        "min_global_steps": _version(sample.weight_version_min, global_steps),
        "max_global_steps": _version(sample.weight_version_max, global_steps),
        "reward_extra_info": {
            "success": float(sample.success),
            "episode_length": sample.episode_length,
            "failed": float(sample.failed),
            # Texts enter no average; the check of an evaluation reads them.
            "failure": failure,
            "fatal": "",
        },
    }


def _version(weight_version: int | None, global_steps: int) -> int:
    """Weights of step ``k`` are made at the end of step ``k``; step ``k + 1`` samples from them."""
    return global_steps - 1 if weight_version is None else int(weight_version)
