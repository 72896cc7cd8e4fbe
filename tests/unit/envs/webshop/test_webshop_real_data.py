"""The official small catalogue, where there is one; `test_checker` plays it as well."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from envs.webshop.env import WebShopEnv, task_list
from envs.webshop.expert import expert
from envs.webshop.goals import num_goals

pytestmark = pytest.mark.unit


@pytest.fixture
def data(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("MEGATRON_AGENT_DATA", str(shared_data))
    return {"data_dir": str(shared_data)}


def test_it_has_the_published_numbers_of_products_and_goals(data: dict[str, str]):
    env = WebShopEnv()
    env.reset(seed=0)
    assert len(env.catalogue.products) == 1000
    assert len(env.catalogue.candidates) == 415
    # 6,910 where the nine values that a product lists twice count twice.
    assert sum(num_goals(product, "synthetic") for product in env.catalogue.candidates) == 6901


def test_train_and_eval_goals_are_disjoint_by_product(data: dict[str, str]):
    names = {split: [start.name for start in task_list(split, data)] for split in ("train", "eval")}
    assert len(set(names["train"] + names["eval"])) == len(names["train"]) + len(names["eval"])
    products = {split: {name.split("-")[0] for name in names[split]} for split in names}
    assert products["train"] & products["eval"] == set()
    assert len(products["train"] | products["eval"]) == 415
    assert len(names["eval"]) > 500


def test_the_expert_is_paid_in_full_on_held_out_goals(data: dict[str, str]):
    env = WebShopEnv()
    rewards = []
    for start in task_list("eval", data)[::3]:
        env.reset(seed=start.seed, options={**data, **start.options})
        for action in expert(env):
            outcome = env.step(action)
        rewards.append(outcome.reward)
    assert len(rewards) > 150
    assert statistics.mean(rewards) >= 0.95
