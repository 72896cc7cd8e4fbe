"""A tiny policy of Qwen2.5-VL's shape, and what stands in for the rest of verl.

A server that answers at once, and a queue that keeps what it is given. Nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from envs.registry import load_env
from megatron_agent.config import Findings, compose_config
from megatron_agent.policy.tokenizer import CHAT_TEMPLATE, train_tokenizer
from megatron_agent.tasks import EnvTask

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
# As Qwen2.5-VL's own: an image is one placeholder between two markers.
SEEING_TEMPLATE = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}",
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}",
)
TASK = EnvTask(env="sokoban", task_id="t", seed=4, split="train", options={"image": True})


@pytest.fixture(scope="session")
def seeing_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like that of Qwen2.5-VL, with random weights."""
    import torch
    from transformers import (
        AddedToken,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    tokenizer = train_tokenizer(load_env("sokoban").corpus(), vocab_size=512)
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=True) for token in VISION_TOKENS],
        special_tokens=True,
    )
    start_id, end_id, image_id, video_id = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    processor = Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(),
        tokenizer,
        Qwen2VLVideoProcessor(),
        chat_template=SEEING_TEMPLATE,
    )
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [1, 1, 2],
            },
            "bos_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        image_token_id=image_id,
        video_token_id=video_id,
        vision_start_token_id=start_id,
        vision_end_token_id=end_id,
    )
    folder = tmp_path_factory.mktemp("seeing") / "policy"
    processor.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    return folder


class Server:
    """Stands for verl's client of the inference servers; notes what it is asked."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.requests: list[dict[str, Any]] = []
        self.texts = itertools.cycle(
            ["<think></think><action>up</action>", "<think></think><action>left</action>"]
        )

    async def generate(self, request_id: str, **request: Any) -> Any:
        self.requests.append(request)
        token_ids = [*self.tokenizer.encode(next(self.texts)), self.tokenizer.eos_token_id]
        return SimpleNamespace(
            token_ids=token_ids,
            log_probs=[-0.5] * len(token_ids),
            stop_reason="completed",
            extra_fields={},
        )


class Policy:
    """What verl's worker hands to the agent loop, and what it does with the loop's outputs."""

    def __init__(self, folder: Path, run_dir: Path) -> None:
        import verl.experimental.agent_loop  # noqa: F401 - verl must be whole before our part of it
        from verl.utils.tokenizer import hf_processor, hf_tokenizer

        self.tokenizer, self.processor = hf_tokenizer(str(folder)), hf_processor(str(folder))
        self.model_type = "qwen2_5_vl"
        self.server = Server(self.tokenizer)
        findings = Findings()
        self.config = compose_config(
            [
                "env=sokoban",
                "env.options.image=true",
                "env.images=true",
                "env.max_steps=3",
                "env.num_workers=1",
                f"actor_rollout_ref.model.path={folder}",
                f"run.dir={run_dir}",
            ],
            findings=findings,
        )
        findings.raise_if_any()

    def play(self) -> list[Any]:
        """The outputs of one session of `TASK`."""
        return asyncio.run(self._play())

    async def _play(self) -> list[Any]:
        from verl.experimental.agent_loop.agent_loop import DictConfigWrap
        from verl.utils.dataset.rl_dataset import RLHFDataset

        from megatron_agent.backend.agent_loop import GymStepsAgentLoop
        from megatron_agent.backend.env_workers import RolloutResources

        loop = GymStepsAgentLoop(
            trainer_config=DictConfigWrap(self.config),
            server_manager=self.server,
            tokenizer=self.tokenizer,
            processor=self.processor,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(self.config.data),
            hf_model_type=self.model_type,
        )
        try:
            return await loop.run({}, **self.row())
        finally:
            if RolloutResources._pool is not None:
                await RolloutResources._pool.close()
            RolloutResources._pool = RolloutResources._pool_lock = None

    @staticmethod
    def drawn(*actions: str) -> list[np.ndarray]:
        """What the environment draws along the way."""
        env = load_env("sokoban").make()
        images = [env.reset(seed=TASK.seed, options=TASK.options).image]
        return images + [env.step(action).observation.image for action in actions]

    def row(self) -> dict[str, Any]:
        from megatron_agent.task_rows import row_of_task

        return {**row_of_task(0, TASK), "uid": "g", "session_id": 0, "global_steps": 1}

    def stored(self, outputs: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
        """The rows as verl puts them into TransferQueue."""
        from verl.trainer.ppo.v1 import agent_loop_tq

        rows: list[Any] = []

        async def keep(*, fields: Any, **_: Any) -> None:
            rows.append(fields)

        monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", keep)
        worker_class = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
        worker = object.__new__(worker_class)
        worker.tokenizer, worker.processor = self.tokenizer, self.processor
        worker.mm_processor_kwargs = {}
        worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
        asyncio.run(
            worker._agent_loop_postprocess(outputs, False, uid="g", session_id=0, global_steps=1)
        )
        return rows[0]

    @staticmethod
    def multi_modal_inputs(rows: Any) -> list[dict[str, Any]]:
        return [getattr(inputs, "data", inputs) for inputs in rows["multi_modal_inputs"]]


@pytest.fixture
def policy(
    seeing_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Policy]:
    from megatron_agent.backend.env_workers import RolloutResources

    monkeypatch.setattr(RolloutResources, "_journal", None)
    monkeypatch.setattr(RolloutResources, "_env_specs", {})
    yield Policy(seeing_policy, tmp_path)
