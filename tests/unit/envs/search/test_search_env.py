"""The environment: searching, answering, prompt, expert, what responses mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.base import Observation, PastStep, PromptContext
from envs.registry import load_env
from envs.search.actions import MAX_CHARS, project, read_action
from envs.search.answers import exact_match, f1_score
from envs.search.env import SearchEnv, start_key, task_list
from envs.search.expert import expert
from envs.search.prompts import build_prompt
from envs.search.questions import load_questions, split_of

pytestmark = pytest.mark.unit

QUESTION = "Into which sea flows the river of Harbour Town?"


@pytest.fixture
def env(options: dict[str, Any]) -> SearchEnv:
    env = SearchEnv()
    env.reset(seed=0, options=options)
    return env


def test_the_start_is_the_question_alone(options: dict[str, Any]):
    observation = SearchEnv().reset(seed=0, options=options)
    assert observation.task == QUESTION
    assert observation.text == "No search was made yet."
    assert observation.admissible_actions == (f"<search>{QUESTION}</search>",)


def test_a_search_shows_passages(env: SearchEnv):
    outcome = env.step("<search>harbour lune</search>")
    assert outcome.observation.text == (
        "Results for: harbour lune\n"
        "[1] Harbour Town: Harbour Town lies on the river Lune. It is old.\n"
        "[2] River Lune: The Lune flows into the Grey Sea."
    )
    assert (outcome.reward, outcome.terminated, outcome.action_valid) == (0.0, False, True)
    assert outcome.info == {"success": False, "num_searches": 1, "task_type": "bridge"}


def test_long_passages_are_cut(env: SearchEnv):
    text = env.step("<search>depth</search>").observation.text
    assert text.endswith("x ...")
    assert len(text) < 1600


def test_a_search_without_a_hit_says_so(env: SearchEnv):
    text = env.step("<search>zzz</search>").observation.text
    assert text == "Results for: zzz\nNothing was found."


def test_the_anchor_is_what_was_found_in_whatever_order(options: dict[str, Any]):
    def anchors(*queries: str) -> list[Any]:
        env = SearchEnv()
        seen = [env.reset(seed=0, options={**options, "topk": 1}).anchor]
        return seen + [
            env.step(f"<search>{query}</search>").observation.anchor for query in queries
        ]

    one, other = anchors("bread", "depth"), anchors("depth", "bakery", "zzz")
    assert one[0] == other[0] == "nothing"
    assert one[1] != other[1]
    assert one[2] == other[2] == other[3]


@pytest.mark.parametrize(
    ("answer", "reward", "f1"), [("Grey Sea.", 1.0, 1.0), ("the sea", 0.0, 2 / 3), ("?", 0.0, 0.0)]
)
def test_an_answer_ends_the_episode(env: SearchEnv, answer: str, reward: float, f1: float):
    outcome = env.step(f"<answer>{answer}</answer>")
    assert (outcome.reward, outcome.terminated, outcome.truncated) == (reward, True, False)
    assert outcome.info["success"] == (reward == 1.0)
    assert outcome.info["f1"] == pytest.approx(f1)
    assert outcome.observation.text == f"Answered: {answer}"
    assert outcome.observation.admissible_actions == ()
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("<search>x</search>")


def test_the_reward_can_be_f1(options: dict[str, Any]):
    env = SearchEnv()
    env.reset(seed=0, options={**options, "reward": "f1"})
    outcome = env.step("<answer>the sea</answer>")
    assert outcome.reward == pytest.approx(2 / 3)
    assert outcome.info["success"] is False


@pytest.mark.parametrize(
    "action",
    [
        "",
        "bread",
        "<search></search>",
        "<search>a",
        "<answer>\x00</answer>",
        "\ud800",
        "x" * 100_000,
    ],
)
def test_an_illegal_action_changes_nothing(env: SearchEnv, action: str):
    start = env.step("").observation
    outcome = env.step(action)
    assert not outcome.action_valid
    assert (outcome.reward, outcome.terminated, outcome.observation) == (0.0, False, start)


def test_step_without_an_episode_is_the_callers_mistake():
    with pytest.raises(RuntimeError, match="no episode was started"):
        SearchEnv().step("<search>x</search>")


def test_questions_are_split_and_each_starts_by_its_id(options: dict[str, Any]):
    starts = {split: task_list(split, options) for split in ("train", "eval")}
    assert sorted(start.name for split in starts for start in starts[split]) == ["q1", "q2", "q4"]
    for split in starts:
        for start in starts[split]:
            env = SearchEnv()
            env.reset(seed=start.seed, options={**options, **start.options})
            assert (env.question.id, split_of(env.question)) == (start.name, split)
    with pytest.raises(ValueError, match="search has the splits train, eval, got 'dev'"):
        task_list("dev", options)


def test_seeds_draw_questions(options: dict[str, Any]):
    keys = {start_key(seed, {**options, "question": ""}) for seed in range(30)}
    assert keys == {"q1", "q2", "q4"}


def test_an_unknown_question_is_refused(options: dict[str, Any]):
    with pytest.raises(ValueError, match="one of the 3 questions, such as 'q1', got 'q9'"):
        SearchEnv().reset(seed=0, options={**options, "question": "q9"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("topk", 0, "from 1 to 20"),
        ("reward", "em", "exact_match or f1"),
        ("deadline_s", 0, "above 0"),
        ("url", None, "a retrieval server"),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, Any], name: str, value: Any, message: str):
    with pytest.raises(ValueError, match=message):
        SearchEnv().reset(seed=0, options={**options, name: value})


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("<think>a</think><search> two\nwords </search>", "<search>two words</search>"),
        ("<think>a < b</think> so <ANSWER>Paris</ANSWER> done", "<answer>Paris</answer>"),
        ("<think></think><search>" + "x" * MAX_CHARS + "</search>", None),
    ],
)
def test_one_pair_of_tags_is_an_action(said: str, action: str | None):
    parsed = project(said, ())
    assert parsed.valid
    assert action is None or parsed.action == action


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "no_action_tag"),
        ("Paris", "no_action_tag"),
        ("<think></think><answer>Paris", "no_action_tag"),
        ("</answer><answer>", "no_action_tag"),
        ("<think></think><search>a</search><answer>b</answer>", "several_actions"),
        ("<think></think><search>a</answer>", "several_actions"),
        ("<think></think><search> \x00</search>", "empty_action"),
        ("<think></think><search>" + "x" * (MAX_CHARS + 1) + "</search>", "action_too_long"),
        ("<search>a</search>", "no_think_tag"),
    ],
)
def test_the_first_fault_is_the_reason(said: str, reason: str):
    parsed = project(said, ())
    assert (parsed.action, parsed.valid, parsed.reason) == ("", False, reason)


@given(st.text() | st.text(alphabet="<>/searchanwtik "))
def test_no_text_raises_and_valid_actions_are_read_back(text: str):
    parsed = project(text, ())
    assert parsed.valid == (not parsed.reason) == (read_action(parsed.action) is not None)


def test_the_expert_looks_up_what_it_needs_and_answers(env: SearchEnv):
    plan = expert(env)
    assert plan == [
        "<search>Harbour Town</search>",
        "<search>River Lune</search>",
        "<answer>the Grey Sea</answer>",
    ]
    env.step("<search>harbour lune</search>")  # brings up both
    plan = expert(env)
    assert plan == ["<answer>the Grey Sea</answer>"]
    assert env.step(plan[0]).info["success"]
    assert expert(env) == []


def test_the_expert_does_not_search_in_vain_for_ever(options: dict[str, Any]):
    env = SearchEnv()
    env.reset(seed=0, options={**options, "question": "q2", "topk": 1})
    env.step("<search>Bakery</search>")
    assert expert(env) == ["<answer>no</answer>"]
    with pytest.raises(TypeError, match="needs a SearchEnv, got object"):
        expert(object())  # type: ignore[arg-type]


PROMPT = """\
Answer the question. You can search a collection of texts as often as you need.
To search: <think>...</think><search>words</search>
When you know the answer, as short as can be: <think>...</think><answer>...</answer>
Question: Who?
Past steps:
Step 1: No search was made yet.
You did: <search>a</search>
Now:
Results for: a
Nothing was found."""


def test_the_prompt_shows_what_was_found_before():
    history = [
        PastStep(step_idx=0, observation="No search was made yet.", action="<search>a</search>")
    ]
    observation = Observation(text="Results for: a\nNothing was found.", anchor="", task="Who?")
    context = PromptContext(observation=observation, step_idx=1, max_steps=5, history=history)
    assert build_prompt(context) == PROMPT


def test_the_spec_reads_its_own_responses():
    spec = load_env("search")
    for action in ("<search>a b</search>", "<answer>c</answer>"):
        assert spec.project(spec.format_response(action), ()).action == action


@pytest.mark.parametrize(
    ("answer", "golden", "em", "f1"),
    [
        ("The Beatles!", ["beatles"], True, 1.0),
        ("a b", ["b"], True, 1.0),  # an article
        ("John Lennon", ["Paul", "John Winston Lennon"], False, 0.8),
        ("no", ["no way"], False, 0.0),  # yes and no count as a whole
        ("yes", ["YES."], True, 1.0),
        ("", ["x"], False, 0.0),
        ("the", ["an"], True, 1.0),
        ("word word", ["word"], False, 2 / 3),
        ("x", [], False, 0.0),
    ],
)
def test_answers_are_compared_as_squad_does(answer: str, golden: list[str], em: bool, f1: float):
    assert exact_match(answer, golden) is em
    assert f1_score(answer, golden) == pytest.approx(f1)


def test_questions_are_read_once_in_a_process(options: dict[str, Any]):
    env = SearchEnv()
    env.reset(seed=0, options=options)
    before = load_questions.cache_info().misses
    SearchEnv().reset(seed=1, options=options)
    assert load_questions.cache_info().misses == before
