"""The parts of a policy that need no torch: shapes, demonstrations, intervals, recipes."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.base import Observation, ParsedAction, PromptContext, StepOutcome, TextEnv
from envs.registry import EnvSpec
from envs.tags import format_response
from megatron_agent.errors import ConfigError
from megatron_agent.policy.build import RECIPE_FILE, check_destination
from megatron_agent.policy.demonstrations import demonstrate
from megatron_agent.policy.evaluate import wilson_interval
from megatron_agent.policy.model import ModelShape
from megatron_agent.policy.warm_start import WarmStartConfig, split_tasks
from megatron_agent.rollout.memory import WindowMemory
from megatron_agent.tasks import EnvTask

pytestmark = pytest.mark.unit


def start(seed: int) -> EnvTask:
    return EnvTask(env="corridor", task_id=f"{seed}", seed=seed, split="train")


class Corridor(TextEnv):
    """Walk right from 0 to 2; the seed says nothing but where one stands at first."""

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        self.place = seed % 2
        return self._observe()

    def step(self, action: str) -> StepOutcome:
        self.place = max(0, self.place + (1 if action == "right" else -1))
        return StepOutcome(
            observation=self._observe(),
            reward=float(self.place == 2),
            terminated=self.place == 2,
            truncated=False,
        )

    def _observe(self) -> Observation:
        return Observation(
            text=f"at {self.place}", anchor=self.place, admissible_actions=("left", "right")
        )


def _prompt(context: PromptContext) -> str:
    past = "; ".join(f"{step.observation} {step.action}" for step in context.history)
    return f"[{past}] {context.observation.text}"


CORRIDOR = EnvSpec(
    name="corridor",
    description="Walk right.",
    make=Corridor,
    build_prompt=_prompt,
    project=lambda text, admissible: ParsedAction(action=text, valid=True),
    expert=lambda env: ["right"] * (2 - env.place),  # type: ignore[attr-defined]
    start_key=lambda seed, options: str(seed % 2),
)


def _demonstrate(tasks: list[EnvTask], **changes: Any) -> list[tuple[str, str]]:
    settings: dict[str, Any] = {
        "max_steps": 5,
        "memory": WindowMemory(1),
        "wander": 0.0,
        "label_noise": 0.0,
        "rng": random.Random(0),
    }
    found = demonstrate(CORRIDOR, tasks, **(settings | changes))
    return [(one.prompt, one.response) for one in found]


def test_an_expert_episode_becomes_one_example_a_step_with_its_window_of_the_past() -> None:
    right = "<think></think><action>right</action>"
    assert _demonstrate([start(0), start(1)]) == [
        ("[] at 0", right),
        ("[at 0 right] at 1", right),
        ("[] at 1", right),
    ]


def test_history_length_zero_shows_no_past() -> None:
    assert [prompt for prompt, _ in _demonstrate([start(0)], memory=WindowMemory(0))] == [
        "[] at 0",
        "[] at 1",
    ]


def test_wandering_changes_the_moves_but_not_the_advice() -> None:
    found = _demonstrate([start(0)] * 50, wander=1.0)
    assert {response for _, response in found} == {format_response("right")}
    assert any(prompt.startswith("[at 0 left]") for prompt, _ in found)


def test_the_answer_to_imitate_is_in_the_environments_own_form() -> None:
    spec = dataclasses.replace(CORRIDOR, format_response=lambda action: f"go {action}")
    found = demonstrate(
        spec,
        [start(1)],
        max_steps=1,
        memory=WindowMemory(0),
        wander=0.0,
        label_noise=0.0,
        rng=random.Random(0),
    )
    assert [one.response for one in found] == ["go right"]


def test_label_noise_changes_the_advice_but_not_the_moves() -> None:
    found = _demonstrate([start(0)] * 50, label_noise=1.0)
    assert {response for _, response in found} == {
        format_response("left"),
        format_response("right"),
    }
    assert {prompt for prompt, _ in found} == {"[] at 0", "[at 0 right] at 1"}


def test_an_environment_without_expert_cannot_be_demonstrated() -> None:
    spec = EnvSpec(
        name="mute",
        description="",
        make=Corridor,
        build_prompt=_prompt,
        project=CORRIDOR.project,
    )
    with pytest.raises(ConfigError, match=r"env must have an expert .* got 'mute'"):
        next(
            demonstrate(
                spec,
                [start(0)],
                max_steps=1,
                memory=WindowMemory(0),
                wander=0.0,
                label_noise=0.0,
                rng=random.Random(0),
            )
        )


def test_measured_starts_are_not_demonstrated_under_another_seed() -> None:
    tasks = [start(seed) for seed in (0, 1, 2, 3, 4)]
    shown, measured = split_tasks(CORRIDOR, tasks, 1)
    assert [task.seed for task in measured] == [0]
    assert [task.seed for task in shown] == [1, 3]  # 2 and 4 are 0 in disguise


def test_too_few_starts_to_demonstrate_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"num_tasks must leave tasks .* the 2 .* got 3"):
        split_tasks(CORRIDOR, [start(0), start(1), start(2)], 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, r"heads must divide hidden \(128\), got 3\. Use 1, 2, .* or 64\."),
        ({"heads": 128}, r"heads must leave an even head size .* got 128"),
        ({"kv_heads": 3}, r"kv_heads must divide heads \(4\), got 3\. Use 1, 2 or 4\."),
        ({"arch": "gpt9"}, "arch must be one of qwen2, qwen3, llama, got 'gpt9'"),
        ({"hidden": 127}, r"hidden must be even, got 127\. Use 128\."),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"intermediate": 0}, "intermediate must be at least 1, got 0"),
    ],
)
def test_a_shape_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelShape(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_success": 40}, r"target_success must be in \[0, 1\], got 40"),
        ({"skill_success": 0.3}, r"target_success must be at most skill_success \(0.3\), got 0.4"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"history_length": -1}, "history_length must be >= 0, got -1"),
        ({"memory": "windw"}, r"memory must be one of key_event, .* got 'windw'. Did you mean"),
        ({"learning_rate": 0.0}, r"learning_rate must be in \(0, 1\), got 0.0"),
    ],
)
def test_a_warm_start_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WarmStartConfig(**changes)


def test_the_wilson_interval_covers_the_rate_and_stays_in_range() -> None:
    assert wilson_interval(0, 20)[0] == 0.0
    assert wilson_interval(20, 20)[1] == pytest.approx(1.0)
    low, high = wilson_interval(80, 200)
    assert (round(low, 3), round(high, 3)) == (0.335, 0.469)


def test_only_a_policy_folder_is_overwritten_and_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out must not exist yet, got .* add --overwrite"):
        check_destination(tmp_path, overwrite=False)
    with pytest.raises(ConfigError, match=r"must be a policy folder \(with policy.json\)"):
        check_destination(tmp_path, overwrite=True)
    (tmp_path / RECIPE_FILE).write_text("{}")
    check_destination(tmp_path, overwrite=True)
    check_destination(tmp_path / "new", overwrite=False)
