"""Prompt templates and prompt files."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.base import Observation, PastStep, PromptContext
from envs.prompt_template import (
    STANDARD_FIELDS,
    PromptTemplate,
    TemplateError,
    with_prompt_file,
)
from envs.registry import load_env

pytestmark = pytest.mark.unit

TWO_PARTS = """\
{task} Step {step} of {max_steps}, {step_count} made, {history_length} shown:
{history}
{{braces}} {observation} [{actions}] {notes}
=== first step ===
Begin: {observation}
"""


def context(num_past: int, **changes: object) -> PromptContext:
    observation = Observation(
        text="a hall", anchor=0, task="Find the key.", admissible_actions=("go", "look")
    )
    history = [
        PastStep(step_idx=step_idx, observation=f"room {step_idx}", action="go" * (step_idx % 2))
        for step_idx in range(num_past)
    ]
    values = {"observation": observation, "step_idx": num_past, "max_steps": 9, "history": history}
    return PromptContext(**{**values, **changes})  # type: ignore[arg-type]


def test_every_standard_field_is_filled_in():
    assert PromptTemplate(TWO_PARTS)(context(2, notes="N")) == (
        "Find the key. Step 3 of 9, 2 made, 2 shown:\n"
        "Step 1: room 0\nYou did: nothing legal\nStep 2: room 1\nYou did: go\n"
        "{braces} a hall [go, look] N"
    )


def test_without_a_past_the_second_part_is_used():
    assert PromptTemplate(TWO_PARTS)(context(0)) == "Begin: a hall"


def test_one_part_serves_both():
    template = PromptTemplate("{history} | {observation}")
    assert template(context(0)) == "none | a hall"


def test_the_names_of_verl_agent_mean_the_same():
    theirs = PromptTemplate(
        "{task_description}{step_count}{history_length}{action_history}{current_step}"
        "{current_observation}{admissible_actions}"
    )
    ours = PromptTemplate("{task}{step_count}{history_length}{history}{step}{observation}{actions}")
    assert theirs(context(1)) == ours(context(1))


def test_an_environment_adds_and_replaces_fields():
    fields = {"history": lambda _: "short", "around": lambda _: "walls"}
    template = PromptTemplate("{action_history} {around}", fields)
    assert template(context(1)) == "short walls"


def test_the_names_of_verl_agents_templates_are_known():
    ours = PromptTemplate("{task} {observation} {actions} {actions} {history} {history} {step}")
    theirs = PromptTemplate(
        "{task_description} {current_observation} {admissible_actions} {available_actions} "
        "{action_history} {memory_context} {current_step}"
    )
    assert theirs(context(1)) == ours(context(1))


def test_a_field_is_listed_once():
    with pytest.raises(TemplateError) as error:
        PromptTemplate("{zzz}", {"history": lambda _: "", "around": lambda _: ""})
    listed = str(error.value).partition("Fields: ")[2].rstrip(".").split(", ")
    assert sorted(listed) == sorted({*STANDARD_FIELDS, "around"})


def test_texts_of_the_environment_are_never_read_as_templates():
    observation = Observation(text="{task} {0} {x.y}", anchor=0)
    filled = PromptTemplate("{observation}")(context(0, observation=observation))
    assert filled == "{task} {0} {x.y}"


def test_open_actions_are_said_to_be_open():
    observation = Observation(text="a shop", anchor=0)
    assert PromptTemplate("{actions}")(context(0, observation=observation)) == "any text"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{obsrvation}",
            r"no field is named {obsrvation}. Did you mean {observation}\? Fields",
        ),
        ("{zzz}", r"no field is named {zzz}. Fields: "),
        ("{observation", r"must have balanced braces .* Write {{ for a brace"),
        ("{observation!r}", "a field must be a plain name, got {observation}"),
        ("{observation.text}", "must be a plain name, got {observation.text}"),
        ("{step:>3}", "must be a plain name, got {step}"),
        ("{}", "must be a plain name, got {}"),
        ("", "must not have an empty part"),
        ("{step}\n=== first step ===\n", "must not have an empty part"),
        ("a\n=== first step ===\nb\n=== first step ===\nc", "at most once, got it 2 times"),
    ],
)
def test_a_bad_template_names_place_and_rule(text: str, message: str):
    with pytest.raises(TemplateError, match=f"prompt of mine.*{message}"):
        PromptTemplate(text, place="prompt of mine")


def test_a_prompt_file_replaces_the_environments_prompt(tmp_path: Path):
    path = tmp_path / "prompt.txt"
    path.write_text("Hier: {observation}\n", encoding="utf-8")
    spec = with_prompt_file(load_env("taxi"), str(path))
    assert spec.build_prompt(context(1)) == "Hier: a hall"
    assert with_prompt_file(load_env("taxi"), None) is load_env("taxi")


def test_a_prompt_file_may_use_the_environments_own_fields(tmp_path: Path):
    path = tmp_path / "prompt.txt"
    path.write_text("{history}")
    spec = with_prompt_file(load_env("cliffwalking"), str(path))
    text = "Player: row 0 column 1\nAround: up edge"
    past = PastStep(step_idx=0, observation=text, action="up")
    assert spec.build_prompt(context(1, history=[past])) == "row 0 column 1: up"


def test_a_prompt_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(TemplateError, match=r"prompt file no/such must be a readable text"):
        with_prompt_file(load_env("taxi"), "no/such")
    (tmp_path / "bad").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TemplateError, match=r"must be a readable text in UTF-8 \(.*decode"):
        with_prompt_file(load_env("taxi"), str(tmp_path / "bad"))
