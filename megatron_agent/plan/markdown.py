"""A table of `rich` as Markdown."""

from __future__ import annotations

from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 400
"""Wide enough that no cell is broken: a line is a row."""


def markdown(table: Table) -> str:
    """The table in Markdown, without its title.

    Example:
        >>> table = Table("phase", "s")
        >>> table.add_row("sync", "6")
        >>> print(markdown(table))
        | phase | s |
        |-------|---|
        | sync  | 6 |
    """
    table.box, table.title, table.pad_edge = box.MARKDOWN, None, True
    out = StringIO()
    Console(file=out, width=WIDTH, color_system=None, highlight=False).print(table)
    head, rule, *rows = (line.strip() for line in out.getvalue().splitlines() if line.strip())
    # Markdown has one rule a table; rich draws one for each section.
    return "\n".join([head, rule, *(row for row in rows if row.strip("|- "))])
