"""Images up to the tokens, and into the row that verl's trainer gets: with a tiny processor of
Qwen2.5-VL's, a tiny model of its shape, and nothing downloaded.

What stands in for the rest: a server that answers at once, and a queue that keeps what it is given.
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

from envs.base import IMAGE_MARK
from envs.registry import load_env
from megatron_agent.config import Findings, compose_config
from megatron_agent.policy.tokenizer import CHAT_TEMPLATE, train_tokenizer
from megatron_agent.tasks import EnvTask

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH, MERGE = 14, 2
# As Qwen2.5-VL's own: an image is one placeholder between two markers.
SEEING_TEMPLATE = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}",
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}",
)
TASK = EnvTask(env="sokoban", task_id="t", seed=4, split="train", options={"image": True})
# A board of 6 cells of 16 pixels a side, brought to whole pairs of patches: 84 x 84.
NUM_PATCHES = (84 // PATCH) ** 2
NUM_IMAGE_TOKENS = NUM_PATCHES // MERGE**2


@pytest.fixture(scope="module")
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
        Qwen2VLImageProcessor(patch_size=PATCH, merge_size=MERGE),
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
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "window_size": 4 * PATCH,
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


@pytest.fixture
def policy(
    seeing_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Policy]:
    from megatron_agent.backend.env_workers import RolloutResources

    monkeypatch.setattr(RolloutResources, "_journal", None)
    monkeypatch.setattr(RolloutResources, "_env_specs", {})
    yield Policy(seeing_policy, tmp_path)


def drawn(*actions: str) -> list[np.ndarray]:
    """What the environment draws along the way."""
    env = load_env("sokoban").make()
    images = [env.reset(seed=TASK.seed, options=TASK.options).image]
    return images + [env.step(action).observation.image for action in actions]


def multi_modal_inputs(rows: Any) -> list[dict[str, Any]]:
    return [getattr(inputs, "data", inputs) for inputs in rows["multi_modal_inputs"]]


def test_verl_loads_the_processor_and_knows_its_positions(policy: Policy) -> None:
    assert type(policy.processor).__name__ == "Qwen2_5_VLProcessor"
    assert callable(policy.processor.get_rope_index)


def test_every_request_has_its_picture_and_the_tokens_of_it(policy: Policy) -> None:
    outputs = policy.play()
    assert [output.extra_fields["failure"] for output in outputs] == [""] * 3
    image_id = policy.processor.image_token_id
    for request, output, image in zip(
        policy.server.requests, outputs, drawn("up", "left"), strict=True
    ):
        (picture,) = request["image_data"]
        assert (picture.mode, picture.size) == ("RGB", (84, 84))
        # The same board, brought to whole patches: the colours of its first cell are still there.
        assert np.array_equal(np.asarray(picture)[4, 4], image[4, 4])
        assert request["prompt_ids"] == output.prompt_ids
        assert output.prompt_ids.count(image_id) == NUM_IMAGE_TOKENS
        assert output.multi_modal_data["images"] == [picture]
    pictures = [np.asarray(request["image_data"][0]) for request in policy.server.requests]
    assert [image.tobytes() == pictures[0].tobytes() for image in pictures[1:]] == [
        image.tobytes() == drawn()[0].tobytes() for image in drawn("up", "left")[1:]
    ]


def test_the_image_stands_right_before_the_observation(policy: Policy) -> None:
    prompt = policy.tokenizer.decode(policy.play()[0].prompt_ids)
    pads = "<|image_pad|>" * NUM_IMAGE_TOKENS
    assert prompt.count("<|vision_start|>") == 1
    before, after = prompt.split(f"<|vision_start|>{pads}<|vision_end|>")
    board = load_env("sokoban").make().reset(seed=TASK.seed, options=TASK.options).text
    assert before.startswith("<|im_start|>user\n")
    assert after.startswith(board)
    assert IMAGE_MARK not in prompt


def test_a_prompt_file_says_where_the_image_goes(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("{image}\nMove: {actions}.")
    policy.config.env.prompt_file = str(tmp_path / "prompt.txt")
    prompt = policy.tokenizer.decode(policy.play()[0].prompt_ids)
    pads = "<|image_pad|>" * NUM_IMAGE_TOKENS
    assert prompt == (
        f"<|im_start|>user\n<|vision_start|>{pads}<|vision_end|>\n"
        "Move: up, down, left, right.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_row_holds_the_tensors_of_its_own_image_and_no_picture(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = policy.play()
    rows = policy.stored(outputs, monkeypatch)
    assert "multi_modal_data" not in set(rows.keys())
    for inputs, output in zip(multi_modal_inputs(rows), outputs, strict=True):
        assert inputs["pixel_values"].shape == (NUM_PATCHES, 3 * 2 * PATCH * PATCH)
        assert inputs["image_grid_thw"].tolist() == [[1, 84 // PATCH, 84 // PATCH]]
        num_tokens = inputs["image_grid_thw"].prod() // MERGE**2
        assert output.prompt_ids.count(policy.processor.image_token_id) == num_tokens


def test_positions_are_those_of_the_model(
    policy: Policy, seeing_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    rows = policy.stored(policy.play(), monkeypatch)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(seeing_policy)
    ids_L = rows["input_ids"][0]
    positions = rows["position_ids"][0]
    assert positions.shape == (4, len(ids_L))
    expected, _ = model.model.get_rope_index(
        input_ids=ids_L[None],
        mm_token_type_ids=(ids_L == policy.processor.image_token_id).long()[None],
        image_grid_thw=multi_modal_inputs(rows)[0]["image_grid_thw"],
        attention_mask=torch.ones_like(ids_L)[None],
    )
    assert positions[0].tolist() == list(range(len(ids_L)))
    assert torch.equal(positions[1:], expected[:, 0])
    # Rows and columns of the image count from where it begins.
    first = ids_L.tolist().index(policy.processor.image_token_id)
    side = 84 // PATCH // MERGE
    at_image = positions[1:, first : first + NUM_IMAGE_TOKENS] - first
    expected_places = [(0, row, column) for row in range(side) for column in range(side)]
    assert list(map(tuple, at_image.T.tolist())) == expected_places


def test_a_model_takes_the_row_as_it_is_and_looks_at_the_image(
    policy: Policy, seeing_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration
    from verl.utils.model import extract_multi_modal_inputs

    rows = policy.stored(policy.play(), monkeypatch)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(seeing_policy).eval()
    ids_L, positions = rows["input_ids"][0], rows["position_ids"][0]
    inputs = extract_multi_modal_inputs([rows["multi_modal_inputs"][0]])

    def logits(pixel_values: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            output = model(
                input_ids=ids_L[None],
                attention_mask=torch.ones_like(ids_L)[None],
                position_ids=positions[1:, None],
                pixel_values=pixel_values,
                image_grid_thw=inputs["image_grid_thw"],
            )
        return output.logits[0]

    seen, blind = logits(inputs["pixel_values"]), logits(torch.zeros_like(inputs["pixel_values"]))
    assert seen.shape == (len(ids_L), model.config.text_config.vocab_size)
    assert bool(torch.isfinite(seen).all())
    first = ids_L.tolist().index(policy.processor.image_token_id)
    assert torch.equal(seen[:first], blind[:first])
    assert not torch.allclose(seen[first:], blind[first:])


def test_verl_joins_rows_with_and_without_an_image(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.utils.model import extract_multi_modal_inputs

    seen = policy.play()
    policy.config.actor_rollout_ref.rollout.prompt_length = 4
    (unplayed,) = policy.play()
    rows = policy.stored([*seen, unplayed], monkeypatch)
    assert unplayed.extra_fields["failure"].startswith("prompt_too_long: ")
    joined = extract_multi_modal_inputs(list(rows["multi_modal_inputs"]))
    assert joined["pixel_values"].shape[0] == 3 * NUM_PATCHES
    assert joined["image_grid_thw"].shape == (3, 3)
    assert [positions.shape[0] for positions in rows["position_ids"]] == [4] * 4


def test_an_over_long_prompt_says_how_many_tokens_the_image_took(policy: Policy) -> None:
    policy.config.actor_rollout_ref.rollout.prompt_length = 12
    (output,) = policy.play()
    assert (
        f"({NUM_IMAGE_TOKENS} of them image tokens), at most 12" in (output.extra_fields["failure"])
    )
    assert output.extra_fields["fatal"] == ""


def test_a_policy_that_cannot_see_ends_the_run_with_the_reason(policy: Policy) -> None:
    policy.processor, policy.model_type = None, "qwen2"
    (output,) = policy.play()
    assert output.extra_fields["fatal"].startswith(
        "ConfigError: actor_rollout_ref.model.path must be a vision-language model whose processor "
        "verl can load, with env.images=true, got "
    )


def test_an_environment_that_draws_nothing_ends_the_run_with_the_reason(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = policy.row()
    row["extra_info"] = {**row["extra_info"], "options_json": "{}"}
    monkeypatch.setattr(policy, "row", lambda: row)
    (output,) = policy.play()
    assert output.extra_fields["fatal"].startswith("ConfigError: env.images must be false for ")


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>"])
def test_a_text_that_names_a_placeholder_fails_its_episode_alone(
    policy: Policy, tmp_path: Path, images: bool, token: str
) -> None:
    policy.config.env.images = images
    (tmp_path / "prompt.txt").write_text("{observation} " + token)
    policy.config.env.prompt_file = str(tmp_path / "prompt.txt")
    (output,) = policy.play()
    assert output.extra_fields["failure"] == (
        f"generation_error: a prompt's text must not hold {token}, which stands for a picture or a "
        "video."
    )
    assert output.extra_fields["fatal"] == ""


def test_a_placeholder_in_a_response_fails_its_episode_alone(policy: Policy) -> None:
    policy.server.texts = itertools.cycle(["up <|image_pad|>"])
    (output,) = policy.play()
    assert output.extra_fields["failure"] == (
        f"generation_error: the response holds token {policy.processor.image_token_id}, which "
        "stands for a picture or a video."
    )


def test_a_policy_that_could_see_reads_only_what_it_is_asked_to(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.config.env.images = False
    outputs = policy.play()
    assert [request["image_data"] for request in policy.server.requests] == [None] * 3
    assert not any(policy.processor.image_token_id in output.prompt_ids for output in outputs)
    rows = policy.stored(outputs, monkeypatch)
    assert not any("pixel_values" in inputs for inputs in multi_modal_inputs(rows))
