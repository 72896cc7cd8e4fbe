"""A resolved configuration as plain values, read by dotted key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from megatron_agent.errors import ConfigError

MISSING = "???"
"""How OmegaConf spells a value that somebody still has to give."""


class ConfigValues:
    """Plain dicts, lists and scalars of a configuration, all interpolations resolved.

    The typed getters return None for a value of another type: `check_tree` has reported
    it by then, and a rule has nothing to say about it.

    Example:
        >>> values = ConfigValues({"data": {"train_batch_size": 8}})
        >>> values.integer("data.train_batch_size"), values.integer("data.seed")
        (8, None)
    """

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.tree = tree

    @classmethod
    def from_config(cls, config: DictConfig) -> ConfigValues:
        """Resolve ``config``.

        Raises:
            ConfigError: an interpolation points at nothing.
        """
        try:
            tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
        except OmegaConfBaseException as error:
            key = getattr(error, "full_key", None) or "configuration"
            reason = str(error).splitlines()[0]
            raise ConfigError(
                str(key), f"must resolve ({reason})", "an interpolation", "Name an existing key."
            ) from error
        assert isinstance(tree, dict)
        return cls({str(key): value for key, value in tree.items()})

    def get(self, key: str, default: Any = None) -> Any:
        """The value at a dotted key, or ``default``."""
        node: Any = self.tree
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return default
            node = node[part]
        return node

    def integer(self, key: str) -> int | None:
        """The value when it is an int (and not a bool)."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, key: str) -> float | None:
        """The value when it is an int or a float (and not a bool)."""
        value = self.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        """The value when it is a str that was given."""
        value = self.get(key)
        return value if isinstance(value, str) and value != MISSING else None

    def flag(self, key: str) -> bool:
        """The value as a flag; absent or of another type is False."""
        return self.get(key) is True

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The subtree at ``key``; empty when there is none."""
        value = self.get(key)
        return value if isinstance(value, Mapping) else {}


def leaf_items(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of all leaves; an empty mapping is a leaf.

    Example:
        >>> dict(leaf_items({"a": {"b": 1, "c": {}}}))
        {'a.b': 1, 'a.c': {}}
    """
    for name, value in tree.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaf_items(value, key)
        else:
            yield key, value
