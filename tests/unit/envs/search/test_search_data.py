"""Files of questions and passages: formats, places, mistakes; ranking by BM25."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.bm25 import Bm25Index
from envs.data import EnvDataError
from envs.search.env import check_data
from envs.search.passages import Bm25Passages, Passage, passage_from_contents, read_passages
from envs.search.questions import find_file, load_questions

pytestmark = pytest.mark.unit

OFFICIAL = [
    {
        "_id": "5a",
        "question": "Who?",
        "answer": "She",
        "type": "comparison",
        "supporting_facts": [["One", 0], ["Two", 1], ["One", 2]],
        "context": [["One", ["First. ", "Second."]], ["Two", ["Third."]]],
    },
    {
        "_id": "5b",
        "question": "What?",
        "answer": "It",
        "supporting_facts": [],
        "context": [["Two", ["Third."]]],
    },
]


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_hotpotqas_own_file_holds_questions_and_corpus(tmp_path: Path):
    path = write(tmp_path / "hotpot_dev_distractor_v1.json", OFFICIAL)
    first = load_questions(path)[0]
    assert (first.id, first.text, first.answers) == ("5a", "Who?", ("She",))
    assert (first.support, first.kind) == (("One", "Two"), "comparison")
    assert read_passages(path) == [
        Passage(title="One", text="First. Second."),
        Passage(title="Two", text="Third."),
    ]


def test_lines_with_golden_answers_are_questions(tmp_path: Path):
    line = json.dumps({"id": 7, "question": "Who?", "golden_answers": ["She", "her"]})
    (question,) = load_questions(write(tmp_path / "nq.jsonl", line + "\n\n"))
    assert (question.id, question.answers, question.support) == ("7", ("She", "her"), ())


def test_lines_with_contents_are_passages(tmp_path: Path):
    line = json.dumps({"id": "0", "contents": '"Lake"\nWater,\nstill.'})
    passages = read_passages(write(tmp_path / "wiki.jsonl", line))
    assert passages == [Passage(title="Lake", text="Water, still.")]
    assert passage_from_contents(passages[0].contents) == passages[0]
    assert passage_from_contents("Lake\nWater") == Passage(title="Lake", text="Water")


@pytest.mark.parametrize("content", ["", "[", "[1]", '[{"id": "q"}]', "{}", "[]", '"text"'])
def test_a_file_of_something_else_is_named(tmp_path: Path, content: str):
    path = write(tmp_path / "file.json", content)
    with pytest.raises(EnvDataError, match=r"file\.json: must"):
        load_questions(path)
    with pytest.raises(EnvDataError, match=r"file\.json: must"):
        read_passages(path)


def test_a_question_without_an_answer_is_refused(tmp_path: Path):
    path = write(tmp_path / "q.json", [{"id": "1", "question": "Who?", "answer": " "}])
    with pytest.raises(EnvDataError, match="a question needs an id, a text and an answer"):
        load_questions(path)


def test_files_are_found_by_name_and_by_default(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MEGATRON_AGENT_DATA", str(folder))
    known = ("first.json", "hotpot100_qa.json")
    assert find_file("", known, "") == folder / "hotpot100_qa.json"
    (folder / "search").mkdir()
    write(folder / "search" / "first.json", "[]")
    assert find_file("", known, "") == folder / "search" / "first.json"
    assert find_file("hotpot100_corpus.json", known, "").name == "hotpot100_corpus.json"
    assert find_file(str(folder / "hotpot100_qa.json"), known, "").parent == folder
    with pytest.raises(EnvDataError, match=r"has no mine\.json"):
        find_file("mine.json", known, "")
    with pytest.raises(EnvDataError, match=r"there is no file /nowhere\.json"):
        find_file("/nowhere.json", known, "")


def test_missing_data_say_how_to_get_them(tmp_path: Path):
    with pytest.raises(EnvDataError, match="curl -O http://curtis"):
        check_data({"data_dir": str(tmp_path)})


def test_with_a_server_no_corpus_is_needed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MEGATRON_AGENT_RETRIEVAL_URL", raising=False)
    (folder / "hotpot100_corpus.json").unlink()
    with pytest.raises(EnvDataError, match="hotpot"):
        check_data({"data_dir": str(folder)})
    check_data({"data_dir": str(folder), "url": "http://127.0.0.1:1"})
    monkeypatch.setenv("MEGATRON_AGENT_RETRIEVAL_URL", "http://127.0.0.1:1")
    check_data({"data_dir": str(folder)})


def test_ties_go_to_the_earlier_text_and_the_number_is_kept():
    index = Bm25Index(["one fish"] * 30 + ["one fish fish"])
    assert [place for place, _ in index.search("fish", 4)] == [30, 0, 1, 2]
    assert len(index.search("fish", 100)) == len(index) == 31
    scores = [score for _, score in index.search("fish", 4)]
    assert scores == sorted(scores, reverse=True)


def test_words_are_stemmed_and_the_commonest_left_out():
    index = Bm25Index(["The runners", "a lamp", ""])
    assert [place for place, _ in index.search("RUNNER", 5)] == [0]
    assert index.search("the a of", 5) == []
    assert index.search("", 5) == []


@pytest.mark.parametrize("texts", [[], ["", "the"]])
def test_nothing_to_index_finds_nothing(texts: list[str]):
    assert Bm25Index(texts).search("word", 3) == []
    assert Bm25Passages([]).search("word", 3) == []
