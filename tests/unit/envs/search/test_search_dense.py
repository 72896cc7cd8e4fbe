"""Search by meaning, with stand-ins for FAISS and the encoder: tests do without them."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.search.dense import DensePassages, SentenceEncoder
from envs.search.passages import Passage
from envs.search.server import main

pytestmark = pytest.mark.unit

PASSAGES = [Passage(title=word, text=word) for word in ("aa", "bb", "ab")]


class Letters:
    """Counts a and b."""

    num_calls = 0

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        Letters.num_calls += 1
        return np.array([self.encode_query(text) for text in texts])

    def encode_query(self, text: str) -> np.ndarray:
        return np.array([text.count("a"), text.count("b")], dtype=np.float32)


class FlatIndex:
    """What `faiss.IndexFlatIP` does."""

    def __init__(self, width: int) -> None:
        self.vectors = np.zeros((0, width), dtype=np.float32)

    @property
    def ntotal(self) -> int:
        return len(self.vectors)

    def add(self, vectors: np.ndarray) -> None:
        self.vectors = np.concatenate([self.vectors, vectors])

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = queries @ self.vectors.T
        places = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, places, axis=1), places


@pytest.fixture
def faiss(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module: Any = types.ModuleType("faiss")
    module.IndexFlatIP = FlatIndex
    module.write_index = lambda index, path: np.savez(path, vectors=index.vectors)

    def read_index(path: str) -> FlatIndex:
        index = FlatIndex(2)
        index.add(np.load(path)["vectors"])
        return index

    module.read_index = read_index
    monkeypatch.setitem(sys.modules, "faiss", module)
    return module


def test_the_nearest_passages_come_first(faiss: types.ModuleType):
    index = DensePassages(PASSAGES, Letters())
    assert len(index) == 3
    assert [passage.title for passage, _ in index.search("b", 2)] == ["bb", "ab"]
    assert [score for _, score in index.search("b", 10)] == [4.0, 2.0, 0.0]


def test_an_index_is_kept_and_used_again(faiss: types.ModuleType, tmp_path: Path):
    kept = str(tmp_path / "index.npz")
    DensePassages(PASSAGES, Letters(), index_file=kept)
    num_calls = Letters.num_calls
    again = DensePassages(PASSAGES, Letters(), index_file=kept)
    assert Letters.num_calls == num_calls
    assert again.search("a", 1)[0][0].title == "aa"
    with pytest.raises(
        ValueError, match="must hold vectors of the 2 passages of the corpus, got 3"
    ):
        DensePassages(PASSAGES[:2], Letters(), index_file=kept)


def test_without_the_extra_the_error_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'megatron-agent\[search-dense\]'"):
        DensePassages(PASSAGES, Letters())
    assert main(["--corpus", str(folder / "hotpot100_corpus.json"), "--encoder", "model"]) == 2
    assert "needs the package 'sentence_transformers'" in capsys.readouterr().err


def test_the_encoder_puts_its_prefixes_before_the_texts(monkeypatch: pytest.MonkeyPatch):
    module: Any = types.ModuleType("sentence_transformers")
    seen: list[str] = []

    class SentenceTransformer:
        def __init__(self, model: str, *, trust_remote_code: bool) -> None:
            assert (model, trust_remote_code) == ("folder", False)

        def encode(self, texts: list[str], **settings: Any) -> np.ndarray:
            assert settings["normalize_embeddings"]
            seen.extend(texts)
            return np.ones((len(texts), 4))

    module.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    encoder = SentenceEncoder("folder", query_prefix="query: ", passage_prefix="passage: ")
    assert encoder.encode_query("a").shape == (4,)
    assert encoder.encode_passages(["b", "c"]).dtype == np.float32
    assert seen == ["query: a", "passage: b", "passage: c"]
