"""A hundred questions of HotpotQA with their passages, where they are; `test_checker` plays them as
well.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.search.env import SearchEnv, task_list
from envs.search.expert import expert
from envs.search.questions import (
    CORPUS_FILES,
    QUESTION_FILES,
    find_file,
    load_corpus,
    load_questions,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def data(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("MEGATRON_AGENT_DATA", str(shared_data))
    monkeypatch.delenv("MEGATRON_AGENT_RETRIEVAL_URL", raising=False)
    return {"data_dir": str(shared_data)}


def test_questions_as_queries_find_most_of_the_support(data: dict[str, str]):
    questions = load_questions(find_file("", QUESTION_FILES, data["data_dir"]))
    corpus = load_corpus(find_file("", CORPUS_FILES, data["data_dir"]))
    assert (len(questions), len(corpus)) == (100, 1000)
    found = [
        {passage.title for passage, _ in corpus.search(question.text, 5)} & set(question.support)
        for question in questions
    ]
    assert sum(map(bool, found)) >= 95


def test_the_expert_answers_every_held_out_question(data: dict[str, str]):
    starts = task_list("eval", data)
    assert 15 <= len(starts) <= 35
    for start in starts:
        env = SearchEnv()
        env.reset(seed=start.seed, options={**data, **start.options})
        for action in expert(env):
            outcome = env.step(action)
        assert outcome.info["success"]
