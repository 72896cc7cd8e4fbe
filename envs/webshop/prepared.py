"""The full catalogue on disk, as `envs.webshop.prepare` writes it, read product by product.

As Python objects 1.18 million products take ten gigabytes, in every worker process. Prepared, they
are a file of lines of which only the asked for are read, and a search index that is mapped into
memory and shared. Nothing is unpickled.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from envs.webshop.products import Product, product_from_json

PRODUCTS_FILE = "products.jsonl"
STARTS_FILE = "line_starts.npy"
ASINS_FILE = "asins.npy"
INDEX_FOLDER = "bm25"


def goals_file(kind: str) -> str:
    """Name of the file with the places of products that have goals of ``kind``."""
    return f"with_{kind}_goals.npy"


class PreparedProducts(Sequence[Product]):
    """Products on disk, or some of them.

    Args:
        folder: made by `envs.webshop.prepare`.
        places: which products; None for all.
    """

    def __init__(self, folder: Path, places: np.ndarray | None = None) -> None:
        self._folder = folder
        self._asins: np.ndarray = np.load(folder / ASINS_FILE, mmap_mode="r")
        self._starts: np.ndarray = np.load(folder / STARTS_FILE, mmap_mode="r")
        self._places = np.arange(len(self._asins)) if places is None else places
        with (folder / PRODUCTS_FILE).open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Product: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Product]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return PreparedProducts(self._folder, self._places[place])
        number = self._places[place]  # raises IndexError as a sequence should
        start, end = self._starts[number], self._starts[number + 1]
        return product_from_json(json.loads(self._lines[start:end]))

    def __iter__(self) -> Iterator[Product]:
        return (self[place] for place in range(len(self)))

    def with_goals(self, kind: str) -> PreparedProducts:
        """The products that have goals of ``kind`` (``synthetic`` or ``human``)."""
        return PreparedProducts(self._folder, np.load(self._folder / goals_file(kind)))

    def find(self, asin: str) -> Product | None:
        """The product of that number, if it is one of these."""
        found = np.flatnonzero(self._asins[self._places] == asin.encode())
        return self[int(found[0])] if len(found) else None
