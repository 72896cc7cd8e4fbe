"""Text from libraries, made fit to show: no colour codes, no control characters."""

from __future__ import annotations

import re

_HIGHLIGHT = re.compile(r"(?:\x1b\[[0-9;]+m)+([^\x1b\n]*)\x1b\[0?m")
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|.)?")


def printable(text: str) -> str:
    r"""``text`` without terminal codes and control characters. What was highlighted by colour
    stands in brackets instead: it is often the only mark of where the player is.

    Example:
        >>> printable("F\x1b[41mF\x1b[0mH\r\n")
        'F[F]H\n'
    """
    text = _HIGHLIGHT.sub(lambda match: f"[{match[1]}]" if match[1] else "", text)
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


def one_line(text: object) -> str:
    r"""``text`` on one line with single blanks, without control characters; empty for None.

    Example:
        >>> one_line(" two\xa0 lines\n\x07")
        'two lines'
    """
    line = "" if text is None else str(text)
    if not line.isprintable():  # looking at every character is slow, and hardly ever needed
        line = "".join(c if c.isprintable() else " " for c in line)
    return " ".join(line.split())
