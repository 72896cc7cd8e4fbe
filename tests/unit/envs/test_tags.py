"""Parsing of tagged responses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.tags import format_response, parse_think_action

pytestmark = pytest.mark.unit

ACTIONS = ("left", "go north")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>a</think><action>left</action>", "left"),
        ("<think></think>\n<action>\n Go NORTH </action> and more", "go north"),
        ("<THINK>a</THINK><Action>LEFT</aCTION>", "left"),
        ("prose <think>a < b > c</think> prose <action>left</action>", "left"),
        (format_response("left"), "left"),
    ],
)
def test_one_tagged_action_is_valid_in_its_admissible_spelling(text: str, action: str):
    parsed = parse_think_action(text, ACTIONS)
    assert (parsed.action, parsed.valid, parsed.reason) == (action, True, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_action_tag"),
        ("left", "no_action_tag"),
        ("<think>a</think><action>left", "no_action_tag"),
        ("</action>left<action>", "no_action_tag"),
        ("<think>a</think>left</action>", "no_action_tag"),
        ("<think>a</think><action>left</action><action>left</action>", "several_actions"),
        ("<think>a</think><action><action>left</action></action>", "several_actions"),
        ("<think><action>left</action></think><action>left</action>", "several_actions"),
        ("<think>a</think><action> \n </action>", "empty_action"),
        ("<think>a</think><action>jump</action>", "not_admissible"),
        ("<think>a</think><action>left left</action>", "not_admissible"),
        ("<action>left</action>", "no_think_tag"),
        ("<think>a<action>left</action>", "no_think_tag"),
        ("<action>left</action><think>a</think>", "no_think_tag"),
    ],
)
def test_the_first_fault_is_the_reason(text: str, reason: str):
    parsed = parse_think_action(text, ACTIONS)
    assert (parsed.action, parsed.valid, parsed.reason) == ("", False, reason)


def test_the_thought_can_be_made_optional():
    assert parse_think_action("<action>left</action>", ACTIONS, require_think=False).valid


def test_any_text_is_admissible_where_actions_are_not_enumerated():
    parsed = parse_think_action("<think>a</think><action>search[cats]</action>", ())
    assert (parsed.action, parsed.valid) == ("search[cats]", True)


@given(st.text() | st.text(alphabet="<>/actionhk left"))
def test_no_text_raises_and_valid_means_admissible(text: str):
    parsed = parse_think_action(text, ACTIONS)
    assert parsed.valid == (parsed.action in ACTIONS) == (not parsed.reason)


@pytest.mark.parametrize("unit", ["<action>", "</action>", "<", "<think><action>x", "\U0001f9ca"])
def test_a_hundred_kilobytes_are_an_invalid_action(unit: str):
    assert not parse_think_action(unit * (100_000 // len(unit)), ACTIONS).valid
