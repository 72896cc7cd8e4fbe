"""Prepare the full catalogue, once: ``python -m envs.webshop.prepare FOLDER``.

``FOLDER`` holds the official ``items_shuffle.json`` and ``items_ins_v2.json``, and
``items_human_ins.json`` where human goals are wanted. What comes out is the folder
``webshop_prepared`` in it; it appears when it is complete.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from envs.bm25 import Bm25Index
from envs.data import EnvDataError
from envs.webshop.catalogue import iterate_products
from envs.webshop.files import (
    HUMAN_FILE,
    PREPARED_FOLDER,
    PREPARED_MARK,
    ShopFiles,
    find_files,
)
from envs.webshop.goals import num_goals
from envs.webshop.prepared import ASINS_FILE, INDEX_FOLDER, PRODUCTS_FILE, STARTS_FILE, goals_file

_GOAL_KINDS = ("synthetic", "human")


def prepare(folder: Path) -> int:
    """Prepare the full catalogue in ``folder``; replaces what was prepared before.

    Returns:
        How many products it has.

    Raises:
        EnvDataError: files that are missing or damaged.
    """
    files = find_files("full", str(folder), human=(folder / HUMAN_FILE).is_file())
    work_folder = Path(tempfile.mkdtemp(prefix=f"{PREPARED_FOLDER}.", dir=folder))
    try:
        num_products = _Writer(work_folder).write(files)
        target = folder / PREPARED_FOLDER
        shutil.rmtree(target, ignore_errors=True)
        work_folder.rename(target)
    except BaseException:
        shutil.rmtree(work_folder, ignore_errors=True)
        raise
    return num_products


class _Writer:
    """Writes everything in one pass, since the products together do not fit into memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts = [0]
        self._asins: list[str] = []
        self._places: dict[str, list[int]] = {kind: [] for kind in _GOAL_KINDS}

    def write(self, files: ShopFiles) -> int:
        """Returns the number of products."""
        index = Bm25Index(self._write_products(files))
        try:
            index.save(self._folder / INDEX_FOLDER)
        except ValueError as error:
            raise EnvDataError(f"{files.products}: {error} It has no products.") from error
        for name, values in (
            (STARTS_FILE, np.array(self._starts, dtype=np.int64)),
            (ASINS_FILE, np.array(self._asins, dtype=bytes)),
            *(
                (goals_file(kind), np.array(places, dtype=np.int64))
                for kind, places in self._places.items()
            ),
        ):
            np.save(self._folder / name, values)
        mark = {"format": 1, "num_products": len(self._asins)}
        (self._folder / PREPARED_MARK).write_text(json.dumps(mark), encoding="utf-8")
        return len(self._asins)

    def _write_products(self, files: ShopFiles) -> Iterator[str]:
        """Yields what the search engine looks at."""
        with (self._folder / PRODUCTS_FILE).open("wb") as file:
            for place, product in enumerate(iterate_products(files)):
                line = json.dumps(dataclasses.asdict(product), ensure_ascii=False) + "\n"
                file.write(line.encode())
                self._starts.append(file.tell())
                self._asins.append(product.asin)
                for kind, places in self._places.items():
                    if num_goals(product, kind):
                        places.append(place)
                yield product.index_text()


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m envs.webshop.prepare FOLDER``. Returns an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.webshop.prepare", description="Prepare WebShop's full catalogue."
    )
    parser.add_argument("folder", type=Path, help="holds items_shuffle.json, items_ins_v2.json")
    folder = parser.parse_args(argv).folder
    try:
        num_products = prepare(folder)
    except (EnvDataError, OSError) as error:
        sys.stderr.write(f"webshop: {error}\n")
        return 2
    sys.stdout.write(f"{folder / PREPARED_FOLDER}: {num_products} products\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
