"""Passages: what a search finds, and the files they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from envs.bm25 import Bm25Index
from envs.data import EnvDataError
from envs.printable import one_line


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A titled text, each on one line."""

    title: str
    text: str

    @property
    def contents(self) -> str:
        """Both in one text, as Search-R1's corpora have it: the title in quotes on a line."""
        return f'"{self.title}"\n{self.text}'


class PassageIndex(Protocol):
    """What a retrieval server serves. `search` is called by several threads at a time."""

    def __len__(self) -> int:
        """How many passages there are."""

    def search(self, query: str, num_results: int) -> list[tuple[Passage, float]]:
        """The best passages with their scores, best first."""


class Bm25Passages:
    """Passages ranked by BM25 over title and text; see `envs.bm25`."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages = list(passages)
        self._index = Bm25Index(passage.contents for passage in self._passages)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, query: str, num_results: int) -> list[tuple[Passage, float]]:
        """Passages that share a word with ``query``, best first."""
        found = self._index.search(query, num_results)
        return [(self._passages[place], score) for place, score in found]


def passage_from_contents(contents: str) -> Passage:
    r"""The passage of a text whose first line is the title, often in quotes.

    Example:
        >>> passage_from_contents('"Lake"\nA body of water.').title
        'Lake'
    """
    title, _, text = contents.partition("\n")
    title = one_line(title)
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return Passage(title=title, text=one_line(text))


def read_passages(path: Path) -> list[Passage]:
    """The passages of a file.

    Three formats are known:

    - ``.jsonl``: one ``{"contents": ...}`` (Search-R1) or ``{"title": ..., "text": ...}`` a line;
    - ``.json``: a list of the same;
    - ``.json`` of HotpotQA (``hotpot_*.json``): the paragraphs of all questions, each once.

    Raises:
        EnvDataError: another content, or nothing at all.
    """
    try:
        passages = list(dict.fromkeys(_iterate_passages(_read(path))))
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise EnvDataError(
            f"{path}: must be a file of passages ({type(error).__name__}: {error}). See "
            f"docs/environments/search.md for the formats."
        ) from error
    if not passages:
        raise EnvDataError(f"{path}: must hold at least one passage, got none.")
    return passages


def _iterate_passages(records: Iterable[Mapping[str, Any]]) -> Iterator[Passage]:
    for record in records:
        if "contents" in record:
            yield passage_from_contents(record["contents"])
        elif "context" in record:
            for title, sentences in record["context"]:
                yield Passage(title=one_line(title), text=one_line("".join(sentences)))
        else:
            yield Passage(title=one_line(record["title"]), text=one_line(record["text"]))


def _read(path: Path) -> Iterable[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file if line.strip()]
        records: list[Mapping[str, Any]] = json.load(file)
        return records
