"""Questions with their answers, and where the files lie.

Looked for in the folders of `envs.data` and, in each, below ``search/`` first. Without a name given
(options ``questions`` and ``corpus``) the first of these that is there is taken:

- ``hotpot_dev_distractor_v1.json``, HotpotQA's own file: 7,405 questions, each with ten paragraphs,
  which together are the corpus;
- ``hotpot100_qa.json`` and ``hotpot100_corpus.json``: a hundred of them with a thousand passages.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.data import EnvDataError, find_data
from envs.printable import one_line
from envs.search.passages import Bm25Passages, read_passages

_HOTPOT = "hotpot_dev_distractor_v1.json"
QUESTION_FILES = (_HOTPOT, "hotpot100_qa.json")
CORPUS_FILES = (_HOTPOT, "hotpot100_corpus.json")
DOWNLOAD_COMMAND = f"curl -O http://curtis.ml.cmu.edu/datasets/hotpot/{_HOTPOT}"
_EVAL_SHARE = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question."""

    id: str
    text: str
    answers: tuple[str, ...]
    """Any of them is right; at least one."""
    support: tuple[str, ...]
    """Titles of the passages that hold the answer, in order; empty where the file has none."""
    kind: str
    """E.g. ``bridge`` or ``comparison``; may be empty."""


def find_file(given: str, known: Sequence[str], data_dir: str) -> Path:
    """The file named ``given``, or the first of ``known`` that is there.

    Raises:
        EnvDataError: it is nowhere; the message names the command that gets one.
    """
    if given and Path(given).is_absolute():
        if not Path(given).is_file():
            raise EnvDataError(f"environment 'search': there is no file {given}.")
        return Path(given)
    first_error: EnvDataError | None = None
    for name in [given] if given else known:
        for subfolder in ("search", "."):
            try:
                folder = find_data(
                    "search",
                    data_dir,
                    needs=(name,),
                    command=DOWNLOAD_COMMAND,
                    subfolder=subfolder,
                )
            except EnvDataError as error:
                first_error = first_error or error
            else:
                return folder / name
    assert first_error is not None
    raise first_error


@functools.lru_cache(maxsize=2)
def load_questions(path: Path) -> tuple[Question, ...]:
    """The questions of a file, in its order; read once in a process.

    Known formats: HotpotQA's (``_id``, ``question``, ``answer``, ``supporting_facts``), the same
    with ``id`` and ``support`` (titles), and lines with ``golden_answers`` (``.jsonl``).

    Raises:
        EnvDataError: another content, or nothing at all.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            records = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            records = json.loads(text)
        questions = tuple(_question(record) for record in records)
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise EnvDataError(
            f"{path}: must be a file of questions ({type(error).__name__}: {error}). See "
            f"docs/environments/search.md for the formats."
        ) from error
    if not questions:
        raise EnvDataError(f"{path}: must hold at least one question, got none.")
    return questions


@functools.lru_cache(maxsize=2)
def load_corpus(path: Path) -> Bm25Passages:
    """The passages of a file with their index; read once in a process."""
    return Bm25Passages(read_passages(path))


def split_of(question: Question) -> str:
    """``eval`` for a quarter of the questions, decided by nothing but the question's id."""
    digest = hashlib.blake2b(question.id.encode(), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "big") < _EVAL_SHARE * 2**64 else "train"


def _question(record: Mapping[str, Any]) -> Question:
    answers = record["golden_answers"] if "golden_answers" in record else [record["answer"]]
    support = record.get("support")
    if support is None:
        support = [title for title, _ in record.get("supporting_facts", ())]
    question = Question(
        id=str(record["_id"] if "_id" in record else record["id"]),
        text=one_line(record["question"]),
        answers=tuple(filter(None, map(one_line, answers))),
        support=tuple(dict.fromkeys(map(one_line, support))),
        kind=str(record.get("type", "")),
    )
    if not (question.id and question.text and question.answers):
        raise ValueError(f"a question needs an id, a text and an answer, got {dict(record)!r:.200}")
    return question
