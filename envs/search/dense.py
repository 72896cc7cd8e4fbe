"""Search by meaning: passages as vectors in a FAISS index. Needs the extra ``search-dense``."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from envs.search.passages import Passage

_BATCH = 64


class Encoder(Protocol):
    """Turns texts into vectors; near in meaning, large in inner product."""

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """Float32 vectors, shape ``[texts, width]``."""

    def encode_query(self, text: str) -> np.ndarray:
        """A float32 vector, shape ``[width]``."""


class SentenceEncoder:
    """A model folder that ``sentence-transformers`` can load (E5, BGE, MiniLM and the like).

    Args:
        model: the folder.
        query_prefix: put before every query, e.g. ``"query: "`` for E5.
        passage_prefix: the same for passages.

    Raises:
        ImportError: the extra is not installed.
        OSError, ValueError: the folder holds no such model.
    """

    def __init__(self, model: str, *, query_prefix: str = "", passage_prefix: str = "") -> None:
        library = _import("sentence_transformers")
        self._model = library.SentenceTransformer(model, trust_remote_code=False)
        self._query_prefix, self._passage_prefix = query_prefix, passage_prefix

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode([self._passage_prefix + text for text in texts])

    def encode_query(self, text: str) -> np.ndarray:
        vector: np.ndarray = self._encode([self._query_prefix + text])[0]
        return vector

    def _encode(self, texts: list[str]) -> np.ndarray:
        vectors = self._model.encode(texts, batch_size=_BATCH, normalize_embeddings=True)
        return np.asarray(vectors, dtype=np.float32)


class DensePassages:
    """Passages ranked by the inner product of their vectors with the query's.

    Args:
        passages: what is searched.
        encoder: for passages and queries.
        index_file: a FAISS index made from these passages in this order, or a place where to keep
            the one made now; empty to keep none.

    Raises:
        ImportError: the extra is not installed.
        ValueError: an index of another number of passages.
    """

    def __init__(
        self, passages: Sequence[Passage], encoder: Encoder, *, index_file: str = ""
    ) -> None:
        self._faiss = _import("faiss")
        self._passages = list(passages)
        self._encoder = encoder
        self._lock = threading.Lock()  # encoders are not made for several threads
        self._index = self._load_or_build(index_file)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, query: str, num_results: int) -> list[tuple[Passage, float]]:
        """The nearest passages, best first."""
        with self._lock:
            vector = np.asarray(self._encoder.encode_query(query), dtype=np.float32)
        scores, places = self._index.search(vector[np.newaxis], min(num_results, len(self)))
        return [
            (self._passages[place], float(score))
            for place, score in zip(places[0], scores[0], strict=True)
            if place >= 0  # -1 stands where an approximate index found too few
        ]

    def _load_or_build(self, index_file: str) -> Any:
        if index_file and Path(index_file).is_file():
            index = self._faiss.read_index(index_file)
            if index.ntotal != len(self):
                raise ValueError(
                    f"{index_file} must hold vectors of the {len(self)} passages of the corpus, "
                    f"got {index.ntotal}. Name the corpus it was made from, or another file."
                )
            return index
        vectors_NW = self._encoder.encode_passages([one.contents for one in self._passages])
        index = self._faiss.IndexFlatIP(vectors_NW.shape[1])
        index.add(np.ascontiguousarray(vectors_NW, dtype=np.float32))
        if index_file:
            self._faiss.write_index(index, index_file)
        return index


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"search by meaning needs the package {name!r} ({error}). "
            f"Install it with: pip install 'megatron-agent[search-dense]'."
        ) from error
