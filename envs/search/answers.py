"""Right or wrong: exact match and F1 of words, as SQuAD and HotpotQA count them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation and articles, single blanks.

    Example:
        >>> normalize_answer("The  Beatles!")
        'beatles'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golden: Iterable[str]) -> bool:
    """Whether ``answer`` is one of the ``golden`` answers after normalisation.

    Example:
        >>> exact_match("the Beatles.", ["Beatles"])
        True
    """
    said = normalize_answer(answer)
    return any(said == normalize_answer(one) for one in golden)


def f1_score(answer: str, golden: Iterable[str]) -> float:
    """Overlap in words with the nearest golden answer: harmonic mean of precision and recall.

    "yes" and "no" share no part with anything but themselves, as in HotpotQA.

    Example:
        >>> f1_score("John Lennon of Liverpool", ["John Winston Lennon"])
        0.5714285714285714
    """
    return max(
        (_f1(normalize_answer(answer), normalize_answer(one)) for one in golden), default=0.0
    )


def _f1(said: str, wanted: str) -> float:
    if said == wanted:
        return 1.0
    if said in _CLOSED_ANSWERS or wanted in _CLOSED_ANSWERS:
        return 0.0
    said_words, wanted_words = said.split(), wanted.split()
    num_common = (Counter(said_words) & Counter(wanted_words)).total()
    if not num_common:
        return 0.0
    return 2 * num_common / (len(said_words) + len(wanted_words))
