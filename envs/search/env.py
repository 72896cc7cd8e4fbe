"""Search: answer questions that take more than one look-up, with a search engine as the only tool.

The engine is a server that speaks Search-R1's request format (option ``url``, or the variable
``MEGATRON_AGENT_RETRIEVAL_URL``); without one, BM25 over the corpus in this process. Large corpora
want a server: an index in every worker process costs memory once for each.

The step limit is the episode runner's (``env.max_steps``); only an answer ends an episode here.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

from envs.base import Observation, StepOutcome, TaskStart, TextEnv
from envs.data import DATA_OPTION
from envs.options import Option, is_int, is_number, resolve_options
from envs.search.actions import MAX_CHARS, format_action, read_action
from envs.search.answers import exact_match, f1_score
from envs.search.client import URL_VARIABLE, RetrievalClient, is_server_url
from envs.search.passages import Passage
from envs.search.questions import (
    CORPUS_FILES,
    QUESTION_FILES,
    Question,
    find_file,
    load_corpus,
    load_questions,
    split_of,
)

NAME = "search"
SPLITS = ("train", "eval")
_MAX_PASSAGE_CHARS = 1500
_NOTHING_YET = "No search was made yet."
_Engine = Callable[[str, int], list[Passage]]
"""``(query, number of passages) -> passages``, best first."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


OPTION_RULES: Mapping[str, Option] = {
    "topk": Option(
        default=3,
        rule="an integer from 1 to 20 (passages that a search shows)",
        allows=lambda value: is_int(value) and 1 <= value <= 20,
    ),
    "reward": Option(
        default="exact_match",
        rule="exact_match or f1",
        allows=lambda value: value in ("exact_match", "f1"),
    ),
    "url": Option(
        default="",
        rule="like http://127.0.0.1:8000 (a retrieval server), or empty",
        allows=lambda value: _is_text(value) and (not value or is_server_url(value)),
    ),
    "deadline_s": Option(
        default=10.0,
        rule="a number above 0 (seconds for one request to the server)",
        allows=lambda value: is_number(value) and value > 0,
    ),
    "question": Option(
        default="",
        rule="the id of a question, or empty to draw one from the seed",
        allows=_is_text,
    ),
    "questions": Option(
        default="",
        rule="a file of questions in the data folder, or empty for HotpotQA's",
        allows=_is_text,
    ),
    "corpus": Option(
        default="",
        rule="a file of passages in the data folder, or empty for HotpotQA's",
        allows=_is_text,
    ),
    "data_dir": DATA_OPTION,
}


def task_list(split: str, options: Mapping[str, Any]) -> list[TaskStart]:
    """The questions of ``train`` (three quarters) or ``eval``, in the order of the file.

    Raises:
        ValueError: another split.
        EnvDataError: no data.
    """
    if split not in SPLITS:
        raise ValueError(f"search has the splits {', '.join(SPLITS)}, got {split!r}.")
    return [
        TaskStart(name=question.id, options={"question": question.id})
        for question in _questions(resolve_options(NAME, OPTION_RULES, options))
        if split_of(question) == split
    ]


def check_data(options: Mapping[str, Any]) -> None:
    """Raise `envs.data.EnvDataError` unless the files are there; with a server, no corpus is
    needed.
    """
    resolved = resolve_options(NAME, OPTION_RULES, options)
    find_file(resolved["questions"], QUESTION_FILES, resolved["data_dir"])
    if not _server_url(resolved):
        find_file(resolved["corpus"], CORPUS_FILES, resolved["data_dir"])


def start_key(seed: int, options: Mapping[str, Any]) -> str:
    """The question's id: two seeds with one question are one task."""
    return _choose(seed, resolve_options(NAME, OPTION_RULES, options)).id


class SearchEnv(TextEnv):
    """Answer the question (`Observation.task`); the answer is paid by exact match or F1.

    Example of an episode::

        env = SearchEnv()
        print(env.reset(seed=0).task)
        print(env.step("<search>author of the book</search>").observation.text)
        print(env.step("<answer>Jane Austen</answer>").reward)
    """

    def __init__(self) -> None:
        self._question: Question | None = None
        self._options: Mapping[str, Any] = {}
        self._search: _Engine | None = None
        self._text = _NOTHING_YET
        self._searched: list[str] = []
        self._found: dict[Passage, None] = {}
        self._done = True

    @property
    def question(self) -> Question:
        """What is asked."""
        return self._running()

    @property
    def searched(self) -> tuple[str, ...]:
        """Queries so far."""
        return tuple(self._searched)

    @property
    def found(self) -> tuple[Passage, ...]:
        """Passages seen so far, each once."""
        return tuple(self._found)

    @property
    def done(self) -> bool:
        """Whether the episode is over (an answer was given), or none was started."""
        return self._done

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Ask the question of ``seed``, or the one that the option names.

        Raises:
            ValueError: an option that cannot work, or data that are not there.
        """
        self._options = resolve_options(NAME, OPTION_RULES, options)
        self._question = _choose(seed, self._options)
        self._search = _engine(self._options)
        self._text = _NOTHING_YET
        self._searched, self._found, self._done = [], {}, False
        return self._observe()

    def step(self, action: str) -> StepOutcome:
        """Search or answer; anything else changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
            RetrievalError: the server is not there or too slow.
        """
        question = self._running()
        if self._done:
            raise RuntimeError("search: the episode is over; call reset() before step().")
        said = read_action(action)
        if said is None:
            return self._outcome(action_valid=False)
        kind, text = said
        if kind == "search":
            assert self._search is not None
            self._show(text, self._search(text, self._options["topk"]))
            return self._outcome()
        return self._judge(text, question)

    def close(self) -> None:
        """End the episode; harmless when called twice. Files stay loaded for the next one."""
        self._question, self._search, self._done = None, None, True

    def _show(self, query: str, passages: list[Passage]) -> None:
        self._searched.append(query)
        self._found.update(dict.fromkeys(passages))
        lines = [f"Results for: {query}"]
        for number, passage in enumerate(passages, start=1):
            text = passage.text
            if len(text) > _MAX_PASSAGE_CHARS:
                text = f"{text[:_MAX_PASSAGE_CHARS].rstrip()} ..."
            lines.append(f"[{number}] {passage.title}: {text}")
        self._text = "\n".join(lines if passages else [*lines, "Nothing was found."])

    def _judge(self, answer: str, question: Question) -> StepOutcome:
        self._done = True
        self._text = f"Answered: {answer}"
        is_right, f1 = exact_match(answer, question.answers), f1_score(answer, question.answers)
        return StepOutcome(
            observation=self._observe(),
            reward=float(is_right) if self._options["reward"] == "exact_match" else f1,
            terminated=True,
            truncated=False,
            info={**self._info(), "success": is_right, "f1": f1},
        )

    def _outcome(self, *, action_valid: bool = True) -> StepOutcome:
        return StepOutcome(
            observation=self._observe(),
            reward=0.0,
            terminated=False,
            truncated=False,
            action_valid=action_valid,
            info={**self._info(), "success": False},
        )

    def _info(self) -> dict[str, Any]:
        return {"num_searches": len(self._searched), "task_type": self.question.kind}

    def _observe(self) -> Observation:
        example = format_action("search", self.question.text[:MAX_CHARS].rstrip())
        return Observation(
            text=self._text,
            anchor=self._text if self._done else _knowledge(self._found),
            # Any words may be searched and any answer given; one search stands for all.
            admissible_actions=() if self._done else (example,),
            task=self.question.text,
        )

    def _running(self) -> Question:
        if self._question is None:
            raise RuntimeError("search: no episode was started; call reset() first.")
        return self._question


def _knowledge(found: Mapping[Passage, None]) -> str:
    """The state of an episode is what has been found so far, in whatever order and by whatever
    words. A search that brings nothing new leads back to the same state.
    """
    if not found:
        return "nothing"
    digests = (
        f"{one.title} {hashlib.blake2b(one.text.encode(), digest_size=4).hexdigest()}"
        for one in found
    )
    return "\n".join(sorted(digests))


def _server_url(options: Mapping[str, Any]) -> str:
    url: str = options["url"] or os.environ.get(URL_VARIABLE, "")
    return url


def _engine(options: Mapping[str, Any]) -> _Engine:
    url = _server_url(options)
    if url:
        return RetrievalClient(url, deadline_s=float(options["deadline_s"])).search
    corpus = load_corpus(find_file(options["corpus"], CORPUS_FILES, options["data_dir"]))

    def search(query: str, num_results: int) -> list[Passage]:
        return [passage for passage, _ in corpus.search(query, num_results)]

    return search


def _questions(options: Mapping[str, Any]) -> tuple[Question, ...]:
    return load_questions(find_file(options["questions"], QUESTION_FILES, options["data_dir"]))


def _choose(seed: int, options: Mapping[str, Any]) -> Question:
    questions = _questions(options)
    if not options["question"]:
        return random.Random(f"search question {seed}").choice(questions)
    for question in questions:
        if question.id == options["question"]:
            return question
    raise ValueError(
        f"option 'question' of environment 'search' must be the id of one of the "
        f"{len(questions)} questions, such as {questions[0].id!r}, got {options['question']!r}."
    )
