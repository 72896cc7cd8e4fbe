"""Any environment that an OpenEnv server serves: one session of the server is one of ours.

OpenEnv's observations and actions are objects whose fields belong to the environment. Options say
which field is the text, the anchor, the list of legal actions, and how the agent's text becomes an
action; what is left out is taken from the server's own schema, or is the whole observation.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from envs.base import Observation, StepOutcome, TextEnv
from envs.data import EnvDataError
from envs.openenv.actions import ActionForm, form_of_schema, is_template
from envs.openenv.fields import as_text, describe, field_at
from envs.openenv.session import (
    URL_VARIABLE,
    OpenEnvError,
    Session,
    fetch_json,
    is_server_url,
)
from envs.options import Option, is_number, resolve_options

NAME = "openenv"
_CHECK_DEADLINE_S = 10.0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _path_option(rule: str) -> Option:
    return Option(default="", rule=f"a dotted path to {rule}, or empty", allows=_is_text)


OPTION_RULES: Mapping[str, Option] = {
    "url": Option(
        default="",
        rule=f"like http://127.0.0.1:8000 (an OpenEnv server), or empty for ${URL_VARIABLE}",
        allows=lambda value: _is_text(value) and (not value or is_server_url(value)),
    ),
    "deadline_s": Option(
        default=20.0,
        rule="a number above 0 (seconds for one request to the server)",
        allows=lambda value: is_number(value) and value > 0,
    ),
    "reset": Option(
        default={},
        rule="an object with parameters of the server's reset beside the seed",
        allows=lambda value: isinstance(value, dict) and "seed" not in value,
    ),
    "task": Option(
        default="", rule="what is to be done, where the server does not tell", allows=_is_text
    ),
    "task_field": _path_option("the task in the first observation"),
    "text_field": _path_option("the text in an observation"),
    "anchor_field": _path_option("what names the state"),
    "actions_field": _path_option("the list of legal actions"),
    "success_field": _path_option("whether the task is done"),
    "action": Option(
        default={},
        rule="an object with {action} in it, such as {message: '{action}'}, or empty",
        allows=lambda value: value == {} or is_template(value),
    ),
    "commands": Option(
        default={},
        rule="an object from text to whole actions, such as {left: {move: 0}}, or empty",
        allows=lambda value: (
            isinstance(value, dict)
            and all(isinstance(action, dict) and name for name, action in value.items())
        ),
    ),
}


def check_data(options: Mapping[str, Any]) -> None:
    """Raise `envs.data.EnvDataError` unless a server is named and answers."""
    resolved = resolve_options(NAME, OPTION_RULES, options)
    try:
        fetch_json(_server_url(resolved), "/health", deadline_s=_CHECK_DEADLINE_S)
    except OpenEnvError as error:
        raise EnvDataError(str(error)) from error


class OpenEnvEnv(TextEnv):
    """An episode in a session of the server; the seed goes to its ``reset``.

    Example of an episode::

        env = OpenEnvEnv()
        print(env.reset(seed=7, options={"url": "http://127.0.0.1:8000"}).text)
        print(env.step("go left").observation.text)
        env.close()
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._options: Mapping[str, Any] = {}
        self._form = ActionForm({})
        self._observation: Observation | None = None
        self._done = True

    @property
    def done(self) -> bool:
        """Whether the episode is over, or none was started."""
        return self._done

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start an episode, in the session of the last one where the server is the same.

        Raises:
            ValueError: an option that cannot work, or no server (`EnvDataError`).
            OpenEnvError: the server is not there, or answers something else.
        """
        options = resolve_options(NAME, OPTION_RULES, options)
        url = _server_url(options)
        if self._session is None or options != self._options:
            self.close()
            self._session = Session(url, deadline_s=float(options["deadline_s"]))
        self._options, self._done = options, True
        self._form = _action_form(url, options)
        answer = self._session.reset({**options["reset"], "seed": seed})
        task = options["task"]
        if options["task_field"]:
            task = as_text(self._field(answer.observation, "task_field"))
        if answer.done:
            raise OpenEnvError(
                f"the OpenEnv server {url} calls the episode of seed {seed} done at its start. "
                f"Correct the server's reset, or env.options.reset."
            )
        self._observation = self._observe(answer.observation, task)
        self._done = False
        return self._observation

    def step(self, action: str) -> StepOutcome:
        """Act. What cannot be sent, is not on the list of legal actions, or is refused by the
        server's schema changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
            OpenEnvError: the server is not there, too slow, or failed.
        """
        before = self._observation
        if before is None or self._session is None:
            raise RuntimeError("openenv: no episode was started; call reset() first.")
        if self._done:
            raise RuntimeError("openenv: the episode is over; call reset() before step().")
        legal = before.admissible_actions
        payload = self._form.payload(action) if action in legal or not legal else None
        is_sent = payload is not None and bool(action.strip())
        self._done = True  # should the server fail now, the episode is over
        answer = self._session.step(payload) if is_sent and payload is not None else None
        if answer is None:
            self._done = False
            return self._outcome(before, 0.0, success=False, action_valid=False)
        observation = self._observe(answer.observation, before.task)
        self._observation, self._done = observation, answer.done
        success = answer.done and answer.reward > 0
        if self._options["success_field"]:
            success = bool(self._field(answer.observation, "success_field"))
        return self._outcome(observation, answer.reward, success=success)

    def close(self) -> None:
        """End the session; harmless when called twice."""
        if self._session is not None:
            self._session.close()
        self._session, self._observation, self._done = None, None, True

    def _outcome(
        self, observation: Observation, reward: float, *, success: bool, action_valid: bool = True
    ) -> StepOutcome:
        return StepOutcome(
            observation=observation,
            reward=reward,
            terminated=self._done,
            truncated=False,
            action_valid=action_valid,
            info={"success": success},
        )

    def _observe(self, observation: Mapping[str, Any], task: str) -> Observation:
        by_field = functools.partial(self._field, observation)
        has = self._options
        text = as_text(by_field("text_field")) if has["text_field"] else describe(observation)
        legal: tuple[str, ...] = tuple(self._form.commands)
        if has["actions_field"]:
            listed = by_field("actions_field")
            legal = tuple(dict.fromkeys(map(str, listed if isinstance(listed, list) else [])))
        return Observation(
            text=text,
            anchor=as_text(by_field("anchor_field")) if has["anchor_field"] else text,
            admissible_actions=legal,
            task=task,
        )

    def _field(self, observation: Mapping[str, Any], option: str) -> Any:
        try:
            return field_at(observation, self._options[option])
        except KeyError as error:
            raise OpenEnvError(
                f"option {option!r} of environment 'openenv' must name a field that the server "
                f"{_server_url(self._options)} sends: {error.args[0]}."
            ) from None


def _server_url(options: Mapping[str, Any]) -> str:
    url: str = options["url"] or os.environ.get(URL_VARIABLE, "")
    if not is_server_url(url):
        raise EnvDataError(
            f"environment 'openenv' must have the address of an OpenEnv server, like "
            f"http://127.0.0.1:8000, got {url!r}. Set env.options.url, or {URL_VARIABLE}."
        )
    return url


def _action_form(url: str, options: Mapping[str, Any]) -> ActionForm:
    if options["action"] or options["commands"]:
        return ActionForm(options["action"], options["commands"])
    return _form_of_server(url, float(options["deadline_s"]))


@functools.lru_cache(maxsize=16)
def _form_of_server(url: str, deadline_s: float) -> ActionForm:
    schema = fetch_json(url, "/schema", deadline_s=deadline_s)
    try:
        return form_of_schema(schema["action"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OpenEnvError(
            f"the OpenEnv server {url} leaves open what an action is ({error}). Set "
            f"env.options.action, such as {{message: '{{action}}'}}, or env.options.commands."
        ) from error
