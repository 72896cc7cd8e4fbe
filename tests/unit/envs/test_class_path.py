"""``package.module:Name`` as the name of an environment."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from envs.base import StepOutcome
from envs.checker import check_env
from envs.registry import EnvLoadError, load_env
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.tasks import generate_tasks

pytestmark = pytest.mark.unit

SOURCE = '''
from envs.base import Observation, StepOutcome, TextEnv
from envs.options import Option, is_int
from envs.frozenlake import SPEC as LAKE
import gymnasium


class Corridor(TextEnv):
    """Walk to the end of the corridor.

    More than one line is said about it.
    """

    OPTION_RULES = {"length": Option(default=3, rule="an integer", allows=is_int)}

    def reset(self, *, seed, options=None):
        self.left = (options or {}).get("length", 3)
        return self.look()

    def look(self):
        text = f"{self.left} steps are left."
        return Observation(text=text, anchor=text, admissible_actions=("on", "wait"))

    def step(self, action):
        valid = action in ("on", "wait")
        self.left -= action == "on"
        won = self.left == 0
        return StepOutcome(observation=self.look(), reward=float(won), terminated=won,
                           truncated=False, action_valid=valid, info={"success": won})

    def expert(self):
        return ["on"] * self.left


class Coin(gymnasium.Env):
    """Guess the coin."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side = int(self.np_random.integers(2))
        return 0, {}

    def step(self, action):
        return 0, float(action == self.side), True, False, {}


class Broken(Coin):
    def __init__(self):
        raise OSError("no coins left")


class Half(TextEnv):
    def reset(self, *, seed, options=None):
        return None


SPEC = LAKE
number = 3
'''


@pytest.fixture
def own_envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo_root: Path):
    (tmp_path / "own_envs.py").write_text(SOURCE)
    (tmp_path / "misspelt_envs.py").write_text("def (")
    (tmp_path / "raising_envs.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(repo_root)]))
    yield
    sys.modules.pop("own_envs", None)
    load_env.__globals__["_load_path"].cache_clear()


@pytest.mark.usefixtures("own_envs")
def test_a_text_env_class_gets_a_prompt_options_and_its_expert():
    spec = load_env("own_envs:Corridor")
    assert spec.name == "own_envs:Corridor"
    assert spec.description == "Walk to the end of the corridor."
    assert spec.default_options == {"length": 3}
    check_env(spec)


@pytest.mark.usefixtures("own_envs")
def test_a_gymnasium_class_works_without_being_registered():
    spec = load_env("own_envs:Coin")
    env = spec.make()
    assert env.reset(seed=0).admissible_actions == ("0", "1")
    rewards = {env.step(action).reward for action in ("0", "1") if env.reset(seed=0)}
    assert rewards == {0.0, 1.0}
    check_env(spec)


@pytest.mark.usefixtures("own_envs")
def test_a_spec_is_used_under_its_path():
    spec = load_env("own_envs:SPEC")
    assert spec.name == "own_envs:SPEC"
    (task,) = generate_tasks("own_envs:SPEC", 1, 0)
    assert task.env == "own_envs:SPEC"
    assert task.task_id.startswith("own_envs:SPEC-train-")


@pytest.mark.usefixtures("own_envs")
@pytest.mark.parametrize("name", ["own_envs:Corridor", "own_envs:Coin", "gym:Taxi-v4"])
def test_worker_processes_find_it_by_the_same_name(name: str):
    async def play() -> StepOutcome:
        pool = EnvPool(num_workers=1)
        await pool.start()
        try:
            (task,) = generate_tasks(name, 1, 0)
            session = await pool.open_session(task, group_id="g", session_id=0)
            observation = await session.reset()
            return await session.step(observation.admissible_actions[0])
        finally:
            await pool.close()

    assert asyncio.run(play()).action_valid


@pytest.mark.usefixtures("own_envs")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_envs:Nothing", "has no attribute 'Nothing'.*Write package.module:Name"),
        ("no_such_module:Env", "No module named 'no_such_module'.*on PYTHONPATH"),
        (":Env", "cannot be loaded: Empty module name"),
        ("misspelt_envs:Env", "cannot be loaded: invalid syntax"),
        ("raising_envs:Env", "cannot be loaded: division by zero"),
        ("gym:misspelt_envs:Env-v0", "cannot be loaded: invalid syntax"),
        ("manager:raising_envs:make", "cannot be loaded: division by zero"),
        (
            "own_envs:number",
            "must be an EnvSpec, a TextEnv class or .*Env class, got int",
        ),
        ("own_envs:Half", "must define reset and step"),
        ("own_envs:Broken", "cannot be made: no coins left"),
    ],
)
def test_a_path_that_leads_nowhere_says_why(path: str, message: str):
    with pytest.raises(EnvLoadError, match=message):
        load_env(path)
