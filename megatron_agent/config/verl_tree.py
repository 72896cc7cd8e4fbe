"""The keys that verl knows, read from its files: importing verl takes many seconds.

Two sources. verl ships its default configuration in one flat file, which gives every key that a
user may override. Nodes with a ``_target_`` become dataclasses inside verl, and those reject what
they do not declare, far into the start of a run; their declarations are read from the source text.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from megatron_agent.errors import HookError

DEFAULTS_FILE = "_generated_ppo_megatron_trainer.yaml"


@functools.cache
def verl_root() -> Path:
    """Folder of the installed verl package, found without importing it.

    Raises:
        HookError: verl is not installed.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise HookError(
            "verl is not installed in this Python. Run 'make setup', then use that venv."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def verl_config_dir() -> Path:
    """Folder of verl's Hydra files."""
    return verl_root() / "trainer" / "config"


@functools.cache
def verl_defaults() -> Mapping[str, Any]:
    """verl's default configuration as plain nested dicts, interpolations left as text.

    Raises:
        HookError: this verl does not ship the file.
    """
    path = verl_config_dir() / DEFAULTS_FILE
    if not path.is_file():
        raise HookError(f"verl at {verl_root()} ships no {DEFAULTS_FILE}; install verl 0.9.1.")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    defaults: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return defaults


def target_fields(target: str) -> Mapping[str, str] | None:
    """Fields of the dataclass behind a ``_target_``: name to annotation text, inherited ones
    included.

    Returns None when the class, or one of its bases, is not found below verl: then nothing can be
    said.

    Example:
        >>> target_fields("verl.workers.config.SamplingConfig")["temperature"]
        'float'
    """
    package, _, class_name = target.rpartition(".")
    if not package.startswith("verl."):
        return None
    return _class_fields(class_name, _classes_of(package.removeprefix("verl.")))


def _class_fields(class_name: str, classes: Mapping[str, ast.ClassDef]) -> Mapping[str, str] | None:
    node = classes.get(class_name)
    if node is None:
        return None
    fields: dict[str, str] = {}
    for base in node.bases:
        base_name = ast.unparse(base).rpartition(".")[2]
        if base_name == "BaseConfig":
            continue
        inherited = _class_fields(base_name, classes)
        if inherited is None:
            return None
        fields |= inherited
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            fields[statement.target.id] = ast.unparse(statement.annotation)
    return fields


@functools.cache
def _classes_of(module: str) -> Mapping[str, ast.ClassDef]:
    path = verl_root().joinpath(*module.split("."))
    return {node.name: node for file in _source_files(path) for node in _classes_in(file)}


def _source_files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(path.glob("*.py"))
    elif path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")


def _classes_in(file: Path) -> Iterator[ast.ClassDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    yield from (node for node in tree.body if isinstance(node, ast.ClassDef))
