"""Four passages and three questions, in the formats of the files that people have. The hash of its
id puts q4 into `eval`, the others into `train`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.search.passages import Bm25Passages, Passage
from envs.search.server import RetrievalServer

PASSAGES = [
    {"title": "Harbour Town", "text": "Harbour Town lies on the river Lune.\nIt is old."},
    {"title": "River Lune", "text": "The Lune flows into the Grey Sea."},
    {"title": "Grey Sea", "text": "A sea of 300 metres depth. " + "x" * 2000},
    {"title": "Bakery", "text": "A place for bread."},
]
QUESTIONS = [
    {
        "id": "q1",
        "question": "Into which sea flows the river of Harbour Town?",
        "answer": "the Grey Sea",
        "support": ["Harbour Town", "River Lune"],
        "type": "bridge",
    },
    {"id": "q2", "question": "Is a bakery\ta sea?", "answer": "no", "support": ["Bakery"]},
    {"id": "q4", "question": "How deep is the Grey Sea?", "answer": "300 m", "support": []},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder."""
    (tmp_path / "hotpot100_qa.json").write_text(json.dumps(QUESTIONS), encoding="utf-8")
    (tmp_path / "hotpot100_corpus.json").write_text(json.dumps(PASSAGES), encoding="utf-8")
    return tmp_path


@pytest.fixture
def options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options that lead to it."""
    monkeypatch.delenv("MEGATRON_AGENT_RETRIEVAL_URL", raising=False)
    monkeypatch.delenv("MEGATRON_AGENT_RETRIEVAL_TOKEN", raising=False)
    return {"data_dir": str(folder), "question": "q1", "topk": 2}


@pytest.fixture
def index() -> Bm25Passages:
    return Bm25Passages(Passage(title=one["title"], text=one["text"]) for one in PASSAGES)


@pytest.fixture
def server(index: Bm25Passages) -> Iterator[RetrievalServer]:
    """A running server on a free port."""
    yield from running(RetrievalServer(index, port=0))


def running(server: RetrievalServer) -> Iterator[RetrievalServer]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
