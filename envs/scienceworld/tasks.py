"""ScienceWorld's tasks and their variations. A table, because asking the package takes ten seconds;
a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

NAME = "scienceworld"
SPLITS: Mapping[str, int] = {"train": 0, "eval": 1, "test": 2}
"""Our split to its place below: ``eval`` is the official ``dev``."""

NUM_VARIATIONS: Mapping[str, tuple[int, int, int]] = {
    "boil": (14, 7, 9),
    "change-the-state-of-matter-of": (14, 7, 9),
    "chemistry-mix": (16, 8, 8),
    "chemistry-mix-paint-secondary-color": (18, 9, 9),
    "chemistry-mix-paint-tertiary-color": (18, 9, 9),
    "find-animal": (150, 75, 75),
    "find-living-thing": (150, 75, 75),
    "find-non-living-thing": (150, 75, 75),
    "find-plant": (150, 75, 75),
    "freeze": (14, 7, 9),
    "grow-fruit": (62, 31, 33),
    "grow-plant": (62, 31, 33),
    "identify-life-stages-1": (6, 3, 5),
    "identify-life-stages-2": (4, 2, 4),
    "inclined-plane-determine-angle": (84, 42, 42),
    "inclined-plane-friction-named-surfaces": (692, 346, 348),
    "inclined-plane-friction-unnamed-surfaces": (80, 40, 42),
    "lifespan-longest-lived": (62, 31, 32),
    "lifespan-longest-lived-then-shortest-lived": (62, 31, 32),
    "lifespan-shortest-lived": (62, 31, 32),
    "measure-melting-point-known-substance": (218, 109, 109),
    "measure-melting-point-unknown-substance": (150, 75, 75),
    "melt": (14, 7, 9),
    "mendelian-genetics-known-plant": (60, 30, 30),
    "mendelian-genetics-unknown-plant": (240, 120, 120),
    "power-component": (10, 5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (10, 5, 5),
    "test-conductivity": (450, 225, 225),
    "test-conductivity-of-unknown-substances": (300, 150, 150),
    "use-thermometer": (270, 135, 135),
}
"""Of train, dev and test; they follow each other in this order."""


def variations(task: str, split: str) -> range:
    """The numbers of a task's variations in a split.

    Raises:
        ValueError: another split.

    Example:
        >>> variations("boil", "eval")
        range(14, 21)
    """
    if split not in SPLITS:
        raise ValueError(f"scienceworld has the splits {', '.join(SPLITS)}, got {split!r}.")
    counts, place = NUM_VARIATIONS[task], SPLITS[split]
    first = sum(counts[:place])
    return range(first, first + counts[place])
