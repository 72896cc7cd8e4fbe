"""The shop: pages, clicks, purchase, prompt, expert."""

from __future__ import annotations

from typing import Any

import pytest

from envs.base import Observation, PastStep, PromptContext
from envs.checker import check_env
from envs.registry import load_env
from envs.webshop.actions import MAX_QUERY_CHARS, project
from envs.webshop.env import WebShopEnv
from envs.webshop.expert import expert
from envs.webshop.pages import option_labels
from envs.webshop.products import Product
from envs.webshop.prompts import build_prompt

pytestmark = pytest.mark.unit

GOAL = "b0shirt001-0"
SEARCH = "search[cotton]"
PRODUCT_PAGE = """\
Product b0shirt001
Harbour Cotton Shirt for Men
Price: $24.73
Rating: 4.5
size: small; x-small (chosen: {size})
color: red | white; small (chosen: {color})"""
PRODUCT_ACTIONS = (
    "click[back to search]",
    "click[< prev]",
    "click[description]",
    "click[features]",
    "click[size: small]",
    "click[x-small]",
    "click[red | white]",
    "click[color: small]",
    "click[buy now]",
)


@pytest.fixture
def env(options: dict[str, Any]) -> WebShopEnv:
    env = WebShopEnv()
    env.reset(seed=0, options={**options, "goal": GOAL})
    return env


def walk(env: WebShopEnv, *actions: str) -> Observation:
    for action in actions:
        outcome = env.step(action)
        assert outcome.action_valid, action
    return outcome.observation


def test_the_start_is_the_search_page(options: dict[str, Any]):
    observation = WebShopEnv().reset(seed=0, options={**options, "goal": GOAL})
    assert observation.text.split("\n")[0] == "Search page"
    assert observation.task.startswith("Find me a machine wash shirt with color: red | white")
    assert observation.admissible_actions == (
        "search[Find me a machine wash shirt with color: red | white, and size: small]",
    )


def test_results_come_on_pages_of_ten(env: WebShopEnv):
    first = walk(env, SEARCH)
    lines = first.text.split("\n")
    assert lines[0] == "Results page 1 of 2, 13 products"
    assert len(lines) == 11
    assert first.admissible_actions[:2] == ("click[back to search]", "click[next >]")
    walk(env, "click[next >]")
    second = walk(env, "click[< prev]", "click[next >]")
    assert second.text.startswith("Results page 2 of 2, 13 products")
    assert second.admissible_actions[:2] == ("click[back to search]", "click[< prev]")
    assert len(second.admissible_actions) == 5
    assert second.text.endswith("\nb0shirt001: Harbour Cotton Shirt for Men, $24.73")
    assert walk(env, "click[back to search]").text.startswith("Search page")


def test_equal_scores_keep_the_order_of_the_file(env: WebShopEnv):
    listed = [line[:10] for line in walk(env, "search[blouse]").text.split("\n")[1:]]
    assert listed == [f"b0blouse{number:02}" for number in range(10)]


@pytest.mark.parametrize("query", ["zzz", "the", "!"])
def test_a_search_without_a_hit_leaves_only_the_way_back(env: WebShopEnv, query: str):
    page = walk(env, f"search[{query}]")
    assert page.text == "Results page 1 of 1, 0 products\nNothing was found."
    assert page.admissible_actions == ("click[back to search]",)


def test_options_are_chosen_on_the_product_page(env: WebShopEnv):
    page = walk(env, "search[shirt]", "click[b0shirt001]")
    assert page.text == PRODUCT_PAGE.format(size="none", color="none")
    assert page.admissible_actions == PRODUCT_ACTIONS
    page = walk(env, "click[size: small]", "click[red | white]", "click[x-small]")
    assert page.text == page.anchor == PRODUCT_PAGE.format(size="x-small", color="red | white")


def test_details_keep_what_was_chosen(env: WebShopEnv):
    page = walk(env, "search[shirt]", "click[b0shirt001]", "click[x-small]", "click[features]")
    assert page.text == (
        "Features of product b0shirt001\n- Long sleeve\n- Buttons\nChosen: size: x-small"
    )
    assert page.admissible_actions == ("click[back to search]", "click[< prev]")
    assert walk(env, "click[< prev]").text == PRODUCT_PAGE.format(size="x-small", color="none")
    page = walk(env, "click[< prev]", "click[b0shirt001]", "click[description]")
    assert page.text.endswith("A shirt for every day. Machine wash.")


def test_long_descriptions_are_cut_and_missing_ones_named(env: WebShopEnv):
    page = walk(env, "search[lamp]", "click[b0000lamp1]", "click[description]")
    assert page.text.endswith("x ...")
    assert len(page.text) < 2100
    assert walk(env, "click[< prev]", "click[features]").text.endswith("\n- Dimmable")


def test_two_ways_to_one_state_have_one_anchor(env: WebShopEnv):
    first = walk(env, "search[shirt]", "click[b0shirt001]", "click[x-small]", "click[red | white]")
    again = walk(
        env,
        "click[back to search]",
        "search[cotton shirt]",
        "click[b0shirt001]",
        "click[red | white]",
        "click[x-small]",
    )
    assert first == again


def test_a_purchase_ends_the_episode_and_pays_its_score(env: WebShopEnv):
    walk(env, "search[shirt]", "click[b0shirt001]", "click[x-small]")
    outcome = env.step("click[buy now]")
    assert (outcome.reward, outcome.terminated, outcome.truncated) == (0.5, True, False)
    assert outcome.info == {
        "success": False,
        "score": 0.5,
        "type_factor": 1.0,
        "num_attributes": 1,
        "num_options": 0,
        "price_fits": True,
    }
    assert outcome.observation.text == "Bought b0shirt001, size: x-small for $24.73."
    assert outcome.observation.admissible_actions == ()
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("click[buy now]")


@pytest.mark.parametrize(("choose", "reward"), [(("click[x-small]",), 0.0), ((), 1.0)])
def test_the_reward_can_be_success_alone(
    options: dict[str, Any], choose: tuple[str, ...], reward: float
):
    env = WebShopEnv()
    env.reset(seed=0, options={**options, "goal": "b0000lamp1-0", "reward": "success"})
    walk(env, "search[dimmable lamp shirt]")
    walk(env, "click[b0shirt001]" if choose else "click[b0000lamp1]", *choose)
    outcome = env.step("click[buy now]")
    assert (outcome.reward, outcome.info["success"]) == (reward, reward == 1.0)


@pytest.mark.parametrize(
    "action",
    ["", "click[buy now]", "search[]", "search[ \x00 ]", "search", "click[zzz]", "\ud800", "x" * 9],
)
def test_an_illegal_action_changes_nothing(env: WebShopEnv, action: str):
    start = env.step("").observation
    outcome = env.step(action)
    assert not outcome.action_valid
    assert (outcome.reward, outcome.terminated, outcome.observation) == (0.0, False, start)


def test_there_is_no_search_bar_beyond_the_search_page(env: WebShopEnv):
    walk(env, SEARCH)
    assert not env.step(SEARCH).action_valid


def test_step_without_an_episode_is_the_callers_mistake():
    with pytest.raises(RuntimeError, match="no episode was started"):
        WebShopEnv().step(SEARCH)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("Search[ Red  shirt ]", "search[Red shirt]"),
        ("search[a [red] shirt]", "search[a [red] shirt]"),
        ("search [two\nlines\x1b]", "search[two lines]"),
        ("search[" + "x" * MAX_QUERY_CHARS + "]", "search[" + "x" * MAX_QUERY_CHARS + "]"),
    ],
)
def test_any_words_can_be_searched(said: str, action: str):
    parsed = project(f"<think>a</think><action>{said}</action>", ("search[example]",))
    assert (parsed.action, parsed.valid) == (action, True)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("<action>search[]</action>", "empty_query"),
        ("<action>search[" + "x" * (MAX_QUERY_CHARS + 1) + "]</action>", "query_too_long"),
        ("<action>search[x</action>", "not_admissible"),
        ("<action>buy[x]</action>", "not_admissible"),
        ("<action>click[x]</action>", "not_admissible"),
        ("search[x]", "no_action_tag"),
    ],
)
def test_what_is_wrong_with_a_response_has_a_name(said: str, reason: str):
    parsed = project(f"<think>a</think>{said}", ("search[example]",))
    assert (parsed.action, parsed.valid, parsed.reason) == ("", False, reason)


def test_labels_tell_shared_values_and_buttons_apart(shirt: Product):
    assert option_labels(shirt) == {
        "size: small": ("size", "small"),
        "x-small": ("size", "x-small"),
        "red | white": ("color", "red | white"),
        "color: small": ("color", "small"),
    }


def test_the_expert_buys_what_is_wanted_from_anywhere(env: WebShopEnv, options: dict[str, Any]):
    plan = expert(env)
    assert plan == [
        "search[Find me a machine wash shirt with color: red | white, and size: small]",
        "click[b0shirt001]",
        "click[red | white]",
        "click[size: small]",
        "click[buy now]",
    ]
    detours: tuple[tuple[str, ...], ...] = (
        (),
        ("search[lamp]",),
        ("search[cotton]", "click[next >]"),
        ("search[lamp]", "click[b0000lamp1]", "click[description]"),
        ("search[shirt]", "click[b0shirt001]", "click[x-small]", "click[features]"),
        ("search[shirt]", "click[b0shirt001]", "click[size: small]"),
    )
    for detour in detours:
        env.reset(seed=0, options={**options, "goal": GOAL})
        for action in detour:
            env.step(action)
        for action in expert(env):
            outcome = env.step(action)
            assert outcome.action_valid, (detour, action)
        assert (outcome.terminated, outcome.info["success"]) == (True, True), detour
        assert expert(env) == []


def test_the_expert_turns_pages(env: WebShopEnv):
    walk(env, "search[cotton blouse number]", "click[next >]")
    plan = expert(env)
    assert plan[0] in ("click[< prev]", "click[b0shirt001]")


def test_the_expert_wants_its_own_environment():
    with pytest.raises(TypeError, match="needs a WebShopEnv, got object"):
        expert(object())  # type: ignore[arg-type]


PROMPT = """\
You shop in a web shop. Search, open products, choose the options that are asked for, and buy the \
product that fits the instruction best. You can buy once.
Answer with <think>...</think><action>...</action>.
Instruction: Buy {a lamp}
Past steps:
Search page: search[lamp]
Results page 1 of 1, 1 products: no legal action
Now:
Product b1
A lamp
Actions: click[< prev], click[buy now]"""


def test_the_prompt_shows_the_past_in_a_line_a_step():
    observation = Observation(
        text="Product b1\nA lamp",
        anchor="",
        admissible_actions=("click[< prev]", "click[buy now]"),
        task="Buy {a lamp}",
    )
    history = [
        PastStep(step_idx=0, observation="Search page\nx", action="search[lamp]"),
        PastStep(step_idx=1, observation="Results page 1 of 1, 1 products\nb1: x", action=""),
    ]
    context = PromptContext(observation=observation, step_idx=2, max_steps=9, history=history)
    assert build_prompt(context) == PROMPT


def test_the_prompt_suggests_no_query(env: WebShopEnv):
    observation = env.step("").observation
    context = PromptContext(observation=observation, step_idx=0, max_steps=9, history=[])
    assert build_prompt(context).endswith("\nActions: search[words of your choice]")


@pytest.mark.parametrize("goals", ["synthetic", "human"])
def test_a_small_shop_keeps_the_contract(
    options: dict[str, Any], goals: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MEGATRON_AGENT_DATA", options["data_dir"])  # for the corpus
    check_env(load_env("webshop"), seeds=(0,), options={**options, "goals": goals})


def test_the_spec_reads_its_own_responses(env: WebShopEnv):
    spec = load_env("webshop")
    page = walk(env, "search[shirt]", "click[b0shirt001]")
    for action in page.admissible_actions:
        assert spec.project(spec.format_response(action), page.admissible_actions).action == action
