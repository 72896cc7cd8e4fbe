"""Goals: fixed, numbered, split by product. Reward: attributes, options, price, type."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from envs.webshop import env as env_module
from envs.webshop.env import SPLITS, WebShopEnv, start_key, task_list
from envs.webshop.goals import (
    Goal,
    draw_goal,
    listed_goals,
    make_goal,
    num_goals,
    options_to_choose,
    split_of,
)
from envs.webshop.products import Product
from envs.webshop.reward import score_purchase, score_type, title_words

pytestmark = pytest.mark.unit


@pytest.fixture
def goal(shirt: Product) -> Goal:
    return make_goal(shirt, "synthetic", 0)


def test_a_goal_is_an_instruction_with_options_and_a_price_limit(goal: Goal):
    assert goal.name == "b0shirt001-0"
    assert goal.options == (("color", "red | white"), ("size", "small"))
    assert goal.price_limit in (40.0, 50.0, 60.0)
    assert goal.instruction == (
        "Find me a machine wash shirt with color: red | white, and size: small, "
        f"and price lower than {goal.price_limit:.2f} dollars"
    )


def test_every_combination_of_options_is_a_goal(shirt: Product):
    goals = [make_goal(shirt, "synthetic", number) for number in range(4)]
    assert num_goals(shirt, "synthetic") == 4
    assert len({goal.options for goal in goals}) == 4


def test_a_human_goal_names_values_without_their_options(shirt: Product):
    goal = make_goal(shirt, "human", 0)
    assert num_goals(shirt, "human") == 1
    assert goal.options == (("", "red | white"),)
    assert options_to_choose(goal) == {"color": "red | white"}


def test_a_price_at_the_top_of_the_scale_has_no_limit(shirt: Product):
    goal = make_goal(replace(shirt, price=985.0), "synthetic", 0)
    assert goal.price_limit is None
    assert goal.instruction.endswith("size: small")
    limits = {make_goal(replace(shirt, price=975.0), "synthetic", n).price_limit for n in range(4)}
    assert limits == {990.0}


def test_seeds_draw_products_evenly(shirt: Product, lamp: Product):
    drawn = Counter(draw_goal([shirt, lamp], "synthetic", seed).target.asin for seed in range(1000))
    assert 400 < drawn["b0000lamp1"] < 600  # though the shirt has four goals of five


def test_a_product_is_in_one_split_only(options: dict[str, Any]):
    lists = {split: task_list(split, options) for split in ("train", "eval")}
    names = [start.name for split in lists for start in lists[split]]
    assert sorted(names) == ["b0000lamp1-0", *(f"b0shirt001-{number}" for number in range(4))]
    products = [{start.name.split("-")[0] for start in lists[split]} for split in lists]
    assert products[0] & products[1] == set()
    for split, starts in lists.items():
        for start in starts:
            env = WebShopEnv()
            env.reset(seed=start.seed, options={**options, **start.options})
            assert env.goal.name == start.name
            assert split_of(env.goal.target) == split


def test_of_a_product_with_many_goals_a_few_are_listed(shirt: Product):
    sizes = tuple(f"size {number}" for number in range(100))
    product = replace(shirt, options={"size": sizes, "color": sizes})
    listed = list(listed_goals([product], "synthetic", split_of(product)))
    assert len(listed) == 20
    assert listed == list(listed_goals([product], "synthetic", split_of(product)))


def test_a_goal_that_is_named_is_the_only_task_of_its_products_split(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(env_module, "listed_goals", lambda *_: iter(["b0shirt001-0"]))
    named = {**options, "goal": "b0shirt001-3"}  # not one of those that are listed
    lists = {split: [start.name for start in task_list(split, named)] for split in SPLITS}
    assert sorted(lists.values()) == [[], ["b0shirt001-3"]]
    with pytest.raises(ValueError, match="has the synthetic goals 0 to 3"):
        task_list("train", {**options, "goal": "b0shirt001-4"})


def test_an_unknown_split_is_refused(options: dict[str, Any]):
    with pytest.raises(ValueError, match="webshop has the splits train, eval, got 'test'"):
        task_list("test", options)


def test_the_start_key_is_the_product(options: dict[str, Any]):
    keys = {start_key(seed, options) for seed in range(20)}
    assert keys == {"b0shirt001", "b0000lamp1"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("b0shirt002-0", "must name a synthetic goal, such as b0shirt001-0, got 'b0shirt002-0'"),
        ("b0shirt001-x", "must name a synthetic goal"),
        ("zzz", "got 'zzz'."),
        ("b0shirt001-4", "has the synthetic goals 0 to 3, got 'b0shirt001-4'"),
    ],
)
def test_an_unknown_goal_is_refused(options: dict[str, Any], name: str, message: str):
    with pytest.raises(ValueError, match=message):
        WebShopEnv().reset(seed=0, options={**options, "goal": name})


def test_the_wanted_product_as_wanted_is_worth_one(shirt: Product, goal: Goal):
    score = score_purchase(shirt, {"color": "red | white", "size": "small"}, goal)
    assert (score.type_factor, score.num_attributes, score.num_options) == (1.0, 1, 2)
    assert (score.price_fits, score.total) == (True, 1.0)


@pytest.mark.parametrize(
    ("chosen", "total"),
    [
        ({}, 2 / 4),  # attribute and price
        ({"color": "red | white"}, 3 / 4),
        ({"color": "white red"}, 3 / 4),  # the same words
        ({"color": "small"}, 2 / 4),
        ({"size": "x-small"}, 2 / 4),  # a size is not alike, it is the one or not
        ({"size": "small", "color": "red | white"}, 1.0),
    ],
)
def test_options_count_one_by_one(shirt: Product, goal: Goal, chosen: dict[str, str], total: float):
    assert score_purchase(shirt, chosen, goal).total == total


def test_a_price_above_the_limit_costs_its_share(shirt: Product, goal: Goal):
    dear = replace(shirt, price=500.0)
    score = score_purchase(dear, {"color": "red | white", "size": "small"}, goal)
    assert (score.price_fits, score.total) == (False, 3 / 4)


def test_an_attribute_may_stand_in_the_texts(shirt: Product, goal: Goal):
    other = replace(shirt, attributes=())
    assert score_purchase(other, {}, goal).num_attributes == 1
    assert score_purchase(replace(other, description=""), {}, goal).num_attributes == 0


def test_the_factor_of_the_type(shirt: Product):
    def product(title: str, query: str = "", path: tuple[str, ...] = ()) -> Product:
        return replace(shirt, title=title, query=query, category_path=path)

    target = product("One Two Three Four Five Six Seven Eight Nine Ten Eleven")
    assert score_type(product("Lamp"), target) == 0.0
    assert score_type(product("One lamp"), target) == 0.1  # 1 of 11
    kinds = {"query": "shirts", "path": ("Clothing", "Men")}
    short = replace(target, title="One Two Three Four Five", **{"query": "shirts"})
    assert score_type(product("Five lamps"), short) == 0.5  # 1 of 5 is not more than a fifth
    assert score_type(product("Five lamps", query="shirts"), short) == 1.0
    assert score_type(product("Five lamps", path=kinds["path"]), shirt) == 0.0
    wide = replace(short, query="x", category_path=("Clothing", "Men", "Shirts"))
    assert score_type(product("Five lamps", path=("Men", "Clothing")), wide) == 1.0
    assert score_type(product("Two Five"), short) == 1.0
    assert score_type(product("12"), product("12", query="x")) == 0.5  # no word to compare


def test_the_worth_of_another_kind_is_scaled_down(lamp: Product, goal: Goal):
    assert score_purchase(lamp, {}, goal).total == 0.0


def test_function_words_and_numbers_say_nothing_about_the_type():
    assert title_words("2 of the 3-Pack for You") == frozenset()
