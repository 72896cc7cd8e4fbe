"""Where the product files lie and how they are read, without loading a file of gigabytes at once.

Looked for, in the folders of `envs.data` and, in each, below ``webshop/`` first:

- ``catalogue: small``: ``items_shuffle_1000.json`` with ``items_ins_v2_1000.json`` (official), or
  ``webshop_products_1000.jsonl.xz`` with ``webshop_items_ins_v2_1000.json`` (packed, one product a
  line);
- ``catalogue: full``: ``webshop_prepared/``, made once by `envs.webshop.prepare`; or, for the
  first ``num_products`` of them, ``items_shuffle.json`` with ``items_ins_v2.json``;
- with each: ``items_human_ins.json``, for ``goals: human``.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from envs.data import EnvDataError, find_data

HUMAN_FILE = "items_human_ins.json"
PREPARED_FOLDER = "webshop_prepared"
PREPARED_MARK = "shop.json"
"""Written last; a folder with it is complete."""
_CHUNK_CHARS = 1 << 20

# The ids are those in the set-up script of WebShop's own repository.
_HUMAN_ID = "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O"
_LAYOUTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "small": (
        ("items_shuffle_1000.json", "items_ins_v2_1000.json"),
        ("webshop_products_1000.jsonl.xz", "webshop_items_ins_v2_1000.json"),
    ),
    "full": (("items_shuffle.json", "items_ins_v2.json"),),
}
_DOWNLOAD_IDS: Mapping[str, tuple[str, ...]] = {
    "small": (
        "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib",
        "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu",
        _HUMAN_ID,
    ),
    "full": (
        "1A2whVgOO0euk5O13n2iYDM0bQRkkRduB",
        "1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi",
        _HUMAN_ID,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShopFiles:
    """The files of one catalogue."""

    products: Path
    synthetic: Path
    human: Path | None
    """None unless human goals are wanted."""


def find_files(catalogue: str, data_dir: str, *, human: bool = False) -> ShopFiles:
    """The files of ``catalogue`` (``small`` or ``full``).

    Args:
        catalogue: which one.
        data_dir: option ``data_dir``, see `envs.data`.
        human: whether the goals that people wrote are needed too.

    Raises:
        EnvDataError: they are nowhere; the message names the command that gets them.
    """
    first_error: EnvDataError | None = None
    more = (HUMAN_FILE,) if human else ()
    for products, synthetic in _LAYOUTS[catalogue]:
        for subfolder in ("webshop", "."):
            try:
                folder = find_data(
                    "webshop",
                    data_dir,
                    needs=(products, synthetic, *more),
                    command=download_command(catalogue),
                    subfolder=subfolder,
                )
            except EnvDataError as error:
                first_error = first_error or error
            else:
                return ShopFiles(
                    products=folder / products,
                    synthetic=folder / synthetic,
                    human=folder / HUMAN_FILE if human else None,
                )
    assert first_error is not None
    raise first_error


def find_prepared(data_dir: str) -> Path:
    """The folder that `envs.webshop.prepare` made of the full catalogue.

    Raises:
        EnvDataError: there is none; the message names the commands that make it.
    """
    first_error: EnvDataError | None = None
    for subfolder in ("webshop", "."):
        try:
            folder = find_data(
                "webshop",
                data_dir,
                needs=(f"{PREPARED_FOLDER}/{PREPARED_MARK}",),
                command=f"{download_command('full')} && python -m envs.webshop.prepare .",
                subfolder=subfolder,
            )
        except EnvDataError as error:
            first_error = first_error or error
        else:
            return folder / PREPARED_FOLDER
    assert first_error is not None
    raise first_error


def download_command(catalogue: str) -> str:
    """What a person runs to get the official files into the current folder."""
    return "pip install gdown && " + " && ".join(
        f"gdown {file_id}" for file_id in _DOWNLOAD_IDS[catalogue]
    )


def read_records(path: Path) -> Iterator[Mapping[str, Any]]:
    """The records of a products file, one at a time: a JSON array, or one JSON object a line
    (``.jsonl``, whose ``product`` is the record), either compressed or not (``.xz``, ``.gz``).

    Raises:
        EnvDataError: the file is not what its name says, or cut off.
    """
    try:
        with _open(path) as file:
            if ".jsonl" in path.suffixes:
                for line in file:
                    record = json.loads(line)
                    yield record.get("product", record)
            else:
                yield from iterate_array(file)
    except (ValueError, AttributeError, OSError, EOFError, lzma.LZMAError) as error:
        raise EnvDataError(f"{path}: cannot be read ({error}). Download it again.") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        EnvDataError: it does not.
    """
    try:
        with _open(path) as file:
            mapping = json.load(file)
    except (ValueError, OSError) as error:
        raise EnvDataError(f"{path}: cannot be read ({error}). Download it again.") from error
    if not isinstance(mapping, dict):
        raise EnvDataError(f"{path}: must hold a JSON object, got a {type(mapping).__name__}.")
    return mapping


def iterate_array(file: TextIO) -> Iterator[Any]:
    """The elements of a JSON array of any size, decoded one at a time.

    Raises:
        ValueError: not an array, or cut off.

    Example:
        >>> from io import StringIO
        >>> list(iterate_array(StringIO('[{"a": 1}, {"a": 2}]')))
        [{'a': 1}, {'a': 2}]
    """
    decoder = json.JSONDecoder()
    buffer = file.read(_CHUNK_CHARS).lstrip()
    if not buffer.startswith("["):
        raise ValueError("must start with '['")
    place = 1
    while True:
        place = _skip(buffer, place)
        if buffer[place : place + 1] == "]":
            return
        try:
            element, end = decoder.raw_decode(buffer, place)
            is_whole = end < len(buffer)  # a number at the end might go on in the next chunk
        except ValueError:
            is_whole = False
        if is_whole:
            yield element
            place = end
            continue
        more = file.read(_CHUNK_CHARS)
        if not more:
            raise ValueError("ends in the middle, or is not JSON")
        buffer, place = buffer[place:] + more, 0


def _skip(buffer: str, place: int) -> int:
    while place < len(buffer) and buffer[place] in " \t\r\n,":
        place += 1
    return place


def _open(path: Path) -> TextIO:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
