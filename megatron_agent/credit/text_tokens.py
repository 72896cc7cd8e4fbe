"""Tokens of an observation's text: all of them, and those that are numbers or ids."""

from __future__ import annotations

import re
from functools import lru_cache

_TOKEN = re.compile(r"\w+|[^\w\s]")
_CHUNK = re.compile(r"[-\u2212\u2013+.]*\w+(?:[^\w\s]\w+)*")
"""Word characters, with a sign before them and single punctuation marks inside: ``-1.5``,
``3,000``, ``12:30``, ``b-07/a`` and ``x=3`` are one chunk each. A sign is a hyphen, a minus, an en
dash, a plus or a point directly before."""

_NUMBER_WORD = re.compile(
    "(zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|"
    "fifteen|sixteen|seventeen|eighteen|nineteen|hundred|thousand|million|billion|trillion|dozen|"
    "first|second|third|quarter|(zero|four|fif|six|seven|eigh|nin|ten|eleven|twelf|thirteen|"
    "fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|hundred|thousand|million|billion|"
    "trillion)th)s?|"
    "(twent|thirt|fort|fift|sixt|sevent|eight|ninet)(y|ies|ieths?)|half|halves|"
    "once|twice|thrice|"
    "x{0,3}(ix|iv|v?i{0,3})"  # roman numerals to 39; a lone letter is an id anyway
)


def tokens(text: str) -> list[str]:
    """Words and punctuation marks, without white space.

    Example:
        >>> tokens("You open drawer 12.")
        ['You', 'open', 'drawer', '12', '.']
    """
    return _TOKEN.findall(text)


def numbers_and_ids(text: str) -> tuple[str, ...]:
    """The tokens that name a certain one of several things, in their order.

    Counted in when in doubt, for two states taken for one do more harm than one taken for two:
    anything with a digit or an underscore in it, English number words, lone letters (except the
    article), and words with a capital letter after their first (``AB``, ``xK``). An id made of
    small letters alone (``deadbeef``) cannot be told from a word. A sign counts where it stands
    directly before (``-5``); with a space (``- 5``) it does not, nor does a comparison (``<5``).

    Example:
        >>> numbers_and_ids("A drawer 1 (id: b-07, 3.5 kg) in room B, two steps away.")
        ('1', 'b-07', '3.5', 'B', 'two')
    """
    return tuple(chunk for chunk in _CHUNK.findall(text) if _is_number_or_id(chunk))


@lru_cache(maxsize=2**16)  # words repeat
def _is_number_or_id(chunk: str) -> bool:
    if len(chunk) == 1:
        return chunk not in "aA"
    if any(letter.isnumeric() or letter == "_" for letter in chunk):
        return True
    if any(letter.isupper() for letter in chunk[1:]):
        return True
    return any(_NUMBER_WORD.fullmatch(word) for word in re.findall(r"[^\W_]+", chunk.lower()))
