"""Digest of an anchor, the canonical state that steps are grouped by.

`rollout/` digests what an environment calls its anchor, `credit/` compares digests. A digest
covers type, shape and content, so that states which only look alike when flattened stay apart. It
is equal in every process and on every machine (no use of ``hash``, of pointers or of native byte
order).

Two values share a digest exactly when a person would call them the same state: numpy scalars
equal the Python number of the same value, ``-0.0`` equals ``0.0``, NaN equals NaN, an array's
memory layout and byte order do not matter, nor does the order of a dict's keys. Types stay apart:
``1``, ``1.0``, ``True``, ``"1"`` and ``b"1"`` are five anchors, and so are a list and a tuple of
the same items.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from megatron_agent.errors import AnchorError

DIGEST_BYTES = 16
"""128 bits: a collision among 2**40 states has a chance below 2**-48."""

_PLAIN_KINDS = "biufSU"
"""numpy kinds whose memory is their value: no pointers, no fields, no padding."""


def anchor_digest(value: Any) -> str:
    """Digest an anchor: 32 hex characters that stand for type, shape and content.

    Args:
        value: text, bytes, an int, float or bool, a numpy array or scalar, or a tuple, list or
            dict of these, nested at will. None may stand inside a container but is no anchor by
            itself.

    Raises:
        AnchorError: the anchor is None or holds a type that has no canonical bytes.

    Example:
        >>> anchor_digest("kitchen") == anchor_digest("kitchen")
        True
        >>> grid = np.zeros((2, 3), dtype=np.uint8)
        >>> anchor_digest(grid) == anchor_digest(grid.reshape(3, 2))
        False
    """
    if value is None:
        raise AnchorError(
            "anchor must be a value that names the state, got None. "
            "Return text, bytes, a number or a numpy array as Observation.anchor."
        )
    return _digest(value, "anchor").hex()


def _digest(value: Any, place: str) -> bytes:
    """Digest of one node.

    Nodes enter their parents as digests of equal length, so that the borders between items cannot
    be confused: ``("ab", "c")`` is not ``("a", "bc")``.
    """
    tag, content = _encode(value, place)
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    hasher.update(f"{tag}:".encode())
    hasher.update(content)
    return hasher.digest()


def _encode(value: Any, place: str) -> tuple[str, bytes]:
    """Type tag (never holds a colon before its end) and canonical bytes of one node."""
    if isinstance(value, np.generic) and value.dtype.kind in _PLAIN_KINDS:
        value = value.item()
    match value:
        case None:
            return "none", b""
        case bool():  # before int: a bool is an int to Python
            return "bool", b"\x01" if value else b"\x00"
        case int():
            return "int", f"{int(value):x}".encode()
        case float():
            canonical = math.nan if math.isnan(value) else float(value) + 0.0
            return "float", struct.pack("<d", canonical)
        case str():
            return "str", value.encode("utf-8", "surrogatepass")
        case bytes() | bytearray():
            return "bytes", bytes(value)
        case np.ndarray():
            return _encode_array(value, place)
        case tuple():
            return "tuple", _digest_items(value, place)
        case list():
            return "list", _digest_items(value, place)
        case dict():
            pairs = (
                _digest(key, f"{place} key {key!r}") + _digest(item, f"{place}[{key!r}]")
                for key, item in value.items()
            )
            return "dict", b"".join(sorted(pairs))
    raise AnchorError(
        f"{place} must be str, bytes, int, float, bool, a numpy array, or a tuple, list or dict of "
        f"these, got {type(value).__name__}. Convert it, e.g. with str(...) or .numpy()."
    )


def _digest_items(items: Iterable[Any], place: str) -> bytes:
    return b"".join(_digest(item, f"{place}[{at}]") for at, item in enumerate(items))


def _encode_array(array: np.ndarray, place: str) -> tuple[str, bytes]:
    shape = "x".join(map(str, array.shape))
    if array.dtype.kind == "O":  # its memory holds pointers: go by the items
        return f"array object {shape}", _digest_items(array.ravel().tolist(), place)
    # An extended-precision float (itemsize above 8) carries padding bytes of no meaning.
    if array.dtype.kind not in _PLAIN_KINDS or (array.dtype.kind == "f" and array.itemsize > 8):
        raise AnchorError(
            f"{place} must be an array of numbers, bools, text or bytes, got dtype {array.dtype}. "
            "Convert it, e.g. to float64, or to a dict with one plain array per field."
        )
    little_endian = array.dtype.newbyteorder("<")
    if array.dtype.kind == "f":
        # One bit pattern for all NaNs, and adding 0 turns -0.0 into 0.0.
        array = np.where(np.isnan(array), np.nan, array + 0)
    return f"array {little_endian.str} {shape}", array.astype(little_endian, order="C").tobytes()
