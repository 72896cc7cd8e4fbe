"""A reader who knows which passages hold the answer, and looks them up before giving it."""

from __future__ import annotations

from envs.base import TextEnv
from envs.search.actions import MAX_CHARS, format_action
from envs.search.env import SearchEnv


def expert(env: TextEnv) -> list[str]:
    """The whole plan from now on: a search for the title of each supporting passage that was not
    found yet, then the answer. Empty when the episode is over.

    Raises:
        TypeError: ``env`` is not a `SearchEnv`.
    """
    if not isinstance(env, SearchEnv):
        raise TypeError(f"the Search expert needs a SearchEnv, got {type(env).__name__}.")
    if env.done:
        return []
    found = {passage.title for passage in env.found}
    # A title that its own search does not bring up is not searched again.
    titles = [
        title[:MAX_CHARS]
        for title in env.question.support
        if title not in found and title[:MAX_CHARS] not in env.searched
    ]
    searches = [format_action("search", title) for title in titles]
    return [*searches, format_action("answer", env.question.answers[0][:MAX_CHARS])]
