"""BM25 over texts in memory (`bm25s`), with ranks that are the same on every machine.

`bm25s` picks the best documents by partial sorting, which leaves the order of equal scores to
numpy's build. Here ties go to the earlier document, so an episode that searches can be repeated.
"""

from __future__ import annotations

import logging
import re
import threading
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import bm25s
import numpy as np
import Stemmer

# It reports every index it builds, at the level of debugging, whatever level the program has set.
logging.getLogger("bm25s").setLevel(logging.WARNING)

_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for from if in into is it no not of on or such that the "
        "their then there these they this to was were will with",
    )
)


class Bm25Index:
    """Ranks texts by the words of a query, stemmed, without the commonest English words.

    May be used by several threads at a time.

    Args:
        texts: the documents; a result names one by its place here.
        k1: how soon repetitions of a word stop to count.
        b: how much long documents are discounted, 0 to 1.

    Example:
        >>> index = Bm25Index(["red cotton shirt", "blue shirts", "a lamp"])
        >>> [document for document, score in index.search("Red shirts", 10)]
        [0, 1]
    """

    def __init__(self, texts: Iterable[str], *, k1: float = 0.9, b: float = 0.4) -> None:
        self._stemmer = Stemmer.Stemmer("english")
        self._lock = threading.Lock()  # a stemmer keeps a cache and is for one thread at a time
        # Numbers take a tenth of the memory of the words.
        number_of: dict[str, int] = {}
        numbers = [
            array("i", [number_of.setdefault(word, len(number_of)) for word in self._words(text)])
            for text in texts
        ]
        self._num_texts = len(numbers)
        # bm25s cannot index nothing, neither no document nor documents without a word.
        self._ranker = None
        if number_of:
            self._ranker = bm25s.BM25(k1=k1, b=b)
            self._ranker.index((numbers, number_of), show_progress=False)

    @classmethod
    def load(cls, folder: Path) -> Bm25Index:
        """The index that `save` wrote. Its arrays stay on disk, and all processes share them."""
        index = cls(())
        index._ranker = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        index._num_texts = int(index._ranker.scores["num_docs"])
        return index

    def save(self, folder: Path) -> None:
        """Write the index into ``folder``; raises ValueError when it holds no word."""
        if self._ranker is None:
            raise ValueError("a search index must hold at least one word to be saved.")
        self._ranker.save(folder, show_progress=False)

    def __len__(self) -> int:
        return self._num_texts

    def search(self, query: str, num_results: int) -> list[tuple[int, float]]:
        """The best documents that share a word with ``query``: ``(place, score)``, best first."""
        if self._ranker is None:
            return []
        word_ids = self._ranker.get_tokens_ids(self._words(query))
        if not word_ids:
            return []
        scores = self._ranker.get_scores(word_ids)
        return [(place, float(scores[place])) for place in _best(scores, num_results)]

    def _words(self, text: str) -> list[str]:
        words = [word for word in _WORD.findall(text.casefold()) if word not in _STOP_WORDS]
        with self._lock:
            stems: list[str] = self._stemmer.stemWords(words)
        return stems


def _best(scores_N: np.ndarray, num_results: int) -> Sequence[int]:
    """Places of the highest positive scores; of equal ones the first."""
    hits = np.flatnonzero(scores_N > 0)
    if len(hits) > num_results > 0:
        last = len(hits) - num_results
        threshold = np.partition(scores_N[hits], last)[last]
        hits = hits[scores_N[hits] >= threshold]
    order = np.argsort(-scores_N[hits], kind="stable")[:num_results]
    return [int(place) for place in hits[order]]
