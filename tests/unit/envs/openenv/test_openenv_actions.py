"""From a response to the object that a server expects, and reading what it sends."""

from __future__ import annotations

from typing import Any

import pytest

from envs.openenv.actions import ActionForm, form_of_schema, is_template
from envs.openenv.env import OPTION_RULES
from envs.openenv.fields import as_text, describe, field_at
from envs.openenv.session import http_url, is_server_url, socket_url
from envs.openenv.wire import Answer, ServerError, read_answer
from envs.options import resolve_options

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("template", "said", "action"),
    [
        ({"message": "{action}"}, "go left", {"message": "go left"}),
        ({"message": "say {action}!"}, "hi", {"message": "say hi!"}),
        ({"move": "{action:int}"}, "3", {"move": 3}),
        ({"move": "{action:int}"}, "three", None),
        ({"x": "{action:float}"}, "0.5", {"x": 0.5}),
        ({"call": {"args": ["{action:json}"]}}, '{"a": 1}', {"call": {"args": [{"a": 1}]}}),
        ({"call": "{action:json}"}, "{", None),
        ({"call": "{action:json}"}, "[" * 100_000, None),
        ({"kind": "chat", "n": 1, "text": "{action}"}, "x", {"kind": "chat", "n": 1, "text": "x"}),
        ({"message": "{action}"}, "\ud800", None),
    ],
)
def test_a_text_becomes_an_action_or_nothing(
    template: dict[str, Any], said: str, action: dict[str, Any] | None
) -> None:
    assert ActionForm(template).payload(said) == action


def test_commands_are_whole_actions_and_nothing_else_may_be_said() -> None:
    form = ActionForm({}, {"left": {"move": 0}})
    assert form.payload("left") == {"move": 0}
    assert form.payload("right") is None


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ({"message": "{action}"}, True),
        ({"call": ["{action:int}"]}, True),
        ({"message": "left"}, False),
        ("{action}", False),
        ({}, False),
    ],
)
def test_a_template_has_a_place_for_the_action(value: object, is_one: bool) -> None:
    assert is_template(value) is is_one


@pytest.mark.parametrize(
    ("schema", "said", "action"),
    [
        ({"properties": {"message": {"type": "string"}}}, "7", {"message": "7"}),
        ({"properties": {"move": {"type": "integer"}, "metadata": {}}}, "7", {"move": 7}),
        ({"properties": {"a": {}, "b": {}}, "required": ["b"]}, "7", {"b": "7"}),
        ({"properties": {"call": {"type": "object"}}}, '{"n": 1}', {"call": {"n": 1}}),
        ({"properties": {"move": {"enum": [0, 1]}}}, "1", {"move": 1}),
        (
            {"properties": {"m": {"$ref": "#/$defs/M"}}, "$defs": {"M": {"enum": ["up"]}}},
            "up",
            {"m": "up"},
        ),
    ],
)
def test_a_schema_with_one_field_says_what_an_action_is(
    schema: dict[str, Any], said: str, action: dict[str, Any]
) -> None:
    assert form_of_schema(schema).payload(said) == action


@pytest.mark.parametrize("fields", [{}, {"x": {}, "y": {}}])
def test_a_schema_that_leaves_a_choice_is_not_guessed(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"an action has the fields (x, y|\(none\))"):
        form_of_schema({"properties": fields})


def test_a_field_is_found_by_its_path() -> None:
    observation = {"text": "a hall", "metadata": {"state": [1, 2]}}
    assert field_at(observation, "metadata.state") == [1, 2]
    with pytest.raises(KeyError, match=r"no field 'metadata\.won'; there is: state"):
        field_at(observation, "metadata.won")
    with pytest.raises(KeyError, match=r"no field 'text\.length'; there is: 'a hall'"):
        field_at(observation, "text.length")


def test_an_observation_is_told_field_by_field() -> None:
    assert describe({"text": "a hall", "metadata": {"moves": 3}}) == "a hall"
    assert describe({"text": "a hall", "doors": ["n", "s"]}) == 'text: a hall\ndoors: ["n", "s"]'
    assert describe({"metadata": {}}) == "(nothing)"
    assert as_text(" ") == "(nothing)"
    assert as_text("\x1b[31mred\x1b[0m\ud800") == "[red]?"


def test_an_answer_is_read() -> None:
    text = (
        '{"type": "observation", "data": {"observation": {"a": 1}, "reward": true, "done": true}}'
    )
    assert read_answer(text) == Answer(observation={"a": 1}, reward=1.0, done=True)


def test_an_error_of_the_server_is_raised() -> None:
    text = '{"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}}'
    with pytest.raises(ServerError, match=r"full \(CAPACITY_REACHED\)"):
        read_answer(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>", "Expecting value"),
        ("[]", "neither an observation nor an error"),
        ('{"type": "observation", "data": {}}', "neither an observation nor an error"),
        ('{"type": "state", "data": {}}', "neither an observation nor an error"),
        (
            '{"type": "observation", "data": {"observation": {}, "reward": NaN}}',
            "the reward is nan",
        ),
        (
            '{"type": "observation", "data": {"observation": {}, "reward": "1"}}',
            "the reward is '1'",
        ),
    ],
)
def test_anything_else_is_no_answer(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_answer(text)


@pytest.mark.parametrize("url", ["http://a:1/b", "http://a:1/b/", "ws://a:1/b/ws", "ws://a:1/b"])
def test_every_spelling_of_an_address_is_understood(url: str) -> None:
    assert socket_url(url) == "ws://a:1/b/ws"
    assert http_url(url) == "http://a:1/b"


@pytest.mark.parametrize("url", ["", "a:1", "ftp://a", "http://", "http://[a"])
def test_what_is_no_address_is_not_one(url: str) -> None:
    assert not is_server_url(url)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "localhost:8000"}, r"'url' .* like http://127.0.0.1:8000 .* got 'localhost:8000'"),
        ({"deadline_s": 0}, r"'deadline_s' .* a number above 0 .* got 0\."),
        ({"reset": {"seed": 1}}, r"'reset' .* parameters of the server's reset beside the seed"),
        ({"action": {"message": "left"}}, r"'action' .* an object with \{action\} in it"),
        ({"commands": {"left": 0}}, r"'commands' .* an object from text to whole actions"),
        ({"text_field": None}, r"'text_field' .* a dotted path to the text in an observation"),
        ({"task": 3}, r"'task' .* what is to be done"),
    ],
)
def test_a_bad_option_names_option_rule_and_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_options("openenv", OPTION_RULES, given)
