"""``gym:ID``: Gymnasium environments without code."""

from __future__ import annotations

import pickle
import random
from typing import Any

import gymnasium
import numpy as np
import pytest

from envs.checker import check_env
from envs.gym_words import action_names, as_anchor, as_image, in_words, legal_actions
from envs.registry import EnvLoadError, EnvNotFoundError, load_env
from megatron_agent.errors import TaskError
from megatron_agent.tasks import EnvTask, generate_tasks, read_tasks, write_tasks

pytestmark = pytest.mark.unit


class EchoEnv(gymnasium.Env[str, str]):
    """Say the word back. Uses the global generators, as some do."""

    def __init__(self, words: str = "ab", render_mode: str | None = None) -> None:
        self.action_space = gymnasium.spaces.Text(max_length=8, charset="abc")
        self.observation_space = gymnasium.spaces.Text(max_length=8)
        self.render_mode = render_mode
        self._words = words

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        np.random.seed(seed)
        self._word = random.choice(self._words) * int(np.random.randint(1, 4))
        return self._word, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._word, 0.0, True, False, {"is_success": action == self._word}


@pytest.fixture(autouse=True)
def echo_env():
    gymnasium.register("Echo-v0", entry_point=EchoEnv)
    yield
    del gymnasium.registry["Echo-v0"]
    load_env.__globals__["_load_path"].cache_clear()


@pytest.mark.parametrize("gym_id", ["Taxi-v4", "FrozenLake-v1", "CartPole-v1"])
def test_gymnasiums_environments_keep_the_contract(gym_id: str):
    check_env(load_env(f"gym:{gym_id}"), seeds=(1,))


def test_what_colour_marks_stands_in_brackets():
    observation = load_env("gym:FrozenLake-v1").make().reset(seed=0)
    assert observation.text == "[S]FFF\nFHFH\nFFFH\nHFFG\n0"
    assert observation.anchor == 0
    assert observation.admissible_actions == ("left", "down", "right", "up")


def test_the_action_mask_says_what_is_admissible():
    env = load_env("gym:Taxi-v4").make()
    observation = env.reset(seed=0)
    assert observation.admissible_actions == ("south", "north")
    assert not env.step("pick up").action_valid


def test_a_module_can_be_imported_first():
    observation = load_env("gym:minigrid:MiniGrid-Empty-5x5-v0").make().reset(seed=0)
    assert "forward" in observation.admissible_actions
    assert "mission: get to the green goal square" in observation.text


def test_text_actions_are_passed_on_and_the_environments_own_verdict_counts():
    env = load_env("gym:Echo-v0").make()
    word = env.reset(seed=5).text
    assert not env.step("WRONG ALPHABET").action_valid
    outcome = env.step(word)
    assert outcome.info["success"]
    with pytest.raises(RuntimeError, match="gym:Echo-v0: no episode is running"):
        env.step(word)


def test_an_environment_that_seeds_the_global_state_is_kept_apart():
    random.seed(3)
    before = random.getstate()
    words = {load_env("gym:Echo-v0").make().reset(seed=5).text for _ in range(3)}
    assert len(words) == 1
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("rule", "success"),
    [("auto", False), ("last_reward", True), ("terminated", True), ("truncated", False)],
)
def test_what_counts_as_success_is_an_option(rule: str, success: bool):
    env = load_env("gym:CartPole-v1").make()
    env.reset(seed=0, options={"success": rule})
    for _ in range(500):
        outcome = env.step("push left")
        if outcome.terminated:
            break
    assert outcome.info["success"] is success


class Paid(gymnasium.Env[int, int]):
    """Every step pays the next of some rewards; the last one ends the episode."""

    action_space = gymnasium.spaces.Discrete(1)
    observation_space = gymnasium.spaces.Discrete(1)

    def __init__(self, rewards: Any = (), end: str = "terminated") -> None:
        self._rewards, self._end = rewards, end

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self._left = list(self._rewards)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = self._left.pop(0)
        over = not self._left
        ended = over and self._end == "terminated"
        return 0, reward, ended, over and not ended, {}


@pytest.mark.parametrize(
    ("rewards", "end", "threshold", "success"),
    [
        ([1, 1, 1], "terminated", None, False),  # it fell: the last step was paid like the others
        ([0, 0, 1], "terminated", None, True),
        ([1], "terminated", None, True),
        ([-1, -1, 20], "terminated", 100, True),
        ([-1, -1, 0], "terminated", None, False),
        ([1, 1, 1], "truncated", 3, True),  # it stood long enough
        ([1, 1, 1], "truncated", 4, False),
        ([1, 1, 1], "truncated", None, False),
        ([-1, -1], "terminated", -3, True),  # it was quick
        ([-1, -1], "truncated", -3, False),
    ],
)
def test_success_by_default_is_a_last_reward_like_no_other_or_a_return_that_is_enough(
    rewards: list[float], end: str, threshold: float | None, success: bool
):
    gymnasium.register("Paid-v0", entry_point=Paid, reward_threshold=threshold)
    try:
        env = load_env("gym:Paid-v0").make()
        env.reset(seed=0, options={"kwargs": {"rewards": rewards, "end": end}})
        outcomes = [env.step("0") for _ in rewards]
    finally:
        del gymnasium.registry["Paid-v0"]
    assert [outcome.info["success"] for outcome in outcomes[:-1]] == [False] * (len(rewards) - 1)
    assert outcomes[-1].info["success"] is success


def test_an_end_at_the_limit_is_an_end_of_the_task():
    env = load_env("gym:CartPole-v1").make()
    env.reset(seed=0, options={"kwargs": {"max_episode_steps": 11}})
    outcomes = [env.step("push left") for _ in range(11)]
    assert (outcomes[-1].terminated, outcomes[-1].truncated) == (True, False)


def test_options_name_actions_and_reach_the_constructor():
    env = load_env("gym:FrozenLake-v1").make()
    kwargs = {"map_name": "8x8", "is_slippery": False}
    options = {"kwargs": kwargs, "actions": ["w", "s", "e", "n"], "task": "Cross."}
    observation = env.reset(seed=0, options=options)
    assert observation.admissible_actions == ("w", "s", "e", "n")
    assert observation.text.count("\n") == 8
    assert observation.task == "Cross."
    assert env.step("e").observation.anchor == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actions": ["a"]}, r"option 'actions' of environment 'gym:FrozenLake-v1' must have 4"),
        ({"actions": ["a", "a"]}, r"'actions' .* must be a list of different names"),
        ({"kwargs": {"no_such": 1}}, r"option 'kwargs' .* must suit it, got .*no_such"),
        (
            {"success": "maybe"},
            r"'success' .* must be one of auto, last_reward, terminated, truncated",
        ),
        ({"sucess": "truncated"}, r"no option 'sucess'. Did you mean 'success'"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        load_env("gym:FrozenLake-v1").make().reset(seed=0, options=options)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("gym:Taxx-v4", EnvNotFoundError, "named 'Taxx-v4'.*Did you mean: `Taxi`.*Write gym:ID"),
        ("gym:", EnvNotFoundError, "no Gymnasium environment is named ''"),
        ("gym:no_such_package:Taxi-v4", EnvLoadError, "No module named 'no_such_package'"),
        ("gym:Pendulum-v1", EnvLoadError, "must be Discrete or Text, got Box.*Write a TextEnv"),
    ],
)
def test_a_name_that_cannot_be_used_says_why(name: str, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        load_env(name)


def test_its_tasks_are_written_and_read(tmp_path: Any):
    tasks = generate_tasks("gym:Taxi-v4", 2, 1, options={"task": "Drive."})
    write_tasks(tmp_path / "tasks.parquet", tasks)
    assert read_tasks(tmp_path / "tasks.parquet", code_names=["gym:Taxi-v4"]) == tasks
    with pytest.raises(
        TaskError, match=r"field 'env': 'gym:Taxi-v4' loads code, which a task file"
    ):
        read_tasks(tmp_path / "tasks.parquet")
    assert isinstance(tasks[0], EnvTask)


def test_the_factory_travels_by_value():
    make = load_env("gym:Taxi-v4").make
    assert pickle.loads(pickle.dumps(make)) == make


def test_the_corpus_holds_prompts_and_responses():
    texts = list(load_env("gym:Taxi-v4").corpus())
    assert any(text.startswith("Gymnasium's Taxi-v4.\nAnswer with") for text in texts)
    assert "<think></think><action>south</action>" in texts


def test_observations_in_words():
    assert in_words((1, np.int64(2), 0.12345)) == "1, 2, 0.123"
    assert in_words(np.eye(2)) == "1, 0\n0, 1"
    assert in_words(np.zeros((9, 9, 3), dtype=np.uint8)) == "(an array of shape 9x9x3)"
    assert in_words({"a": 1, "b": "x\x1b[0m"}) == "a: 1\nb: x"


def test_anchors_are_plain_and_do_not_change_later():
    array = np.zeros(2)
    anchor = as_anchor({"a": array, "b": (np.int64(1),)})
    array += 1
    assert anchor["a"].tolist() == [0, 0]
    assert anchor["b"] == (1,)


def test_a_picture_in_the_observation_is_the_image():
    picture = np.zeros((32, 32, 3), dtype=np.uint8)
    assert as_image({"mission": "go", "rgb": picture}).shape == (32, 32, 3)
    assert as_image({"image": picture[:7, :7]}) is None  # a grid of codes, not a picture
    assert as_image(picture) is not picture


def test_unknown_actions_are_numbers_and_an_empty_mask_means_all():
    class Plain(EchoEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]

    assert action_names(Plain()) == ("0", "1", "2")
    assert legal_actions(("a", "b"), {"action_mask": [0, 0]}) == ("a", "b")
    assert legal_actions(("a", "b"), {"action_mask": [0, 1]}) == ("b",)
