"""Four functions of TextWorld and Fast Downward, replaced by faster ones with the same results.

Out of the box, a step of an ALFWorld game parses the same few hundred text rules again and again,
and copies whole game states for every phrase it prints. A reset translates the whole game four
times. The texts are byte for byte the same with these replacements; steps take about a
fifteenth of the time (``benchmarks/alfworld_engine.py``).

Each patch names what it replaces and the SHA-256 of the source it was written for. Where the
installed source differs, the patch is left out with a warning: slower, and never wrong.
``tests/contract/test_textworld_patches.py`` fails in that case.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

_MAX_PARSED = 50_000
_MAX_TRANSLATED = 4
"""Games whose translation is kept: the sessions of a group in one worker translate it once."""
_MAX_REMEMBERED = 50_000


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One replacement."""

    module: str
    name: str
    """Attribute of the module, with a dot for one of a class."""
    digest: str
    """SHA-256 of the source that is replaced."""
    why: str
    replace: Callable[[Any], Any]
    """From the original to its replacement."""

    def owner(self) -> tuple[Any, str]:
        """The object that holds the attribute, and the attribute's name."""
        *path, attribute = self.name.split(".")
        holder = functools.reduce(getattr, path, importlib.import_module(self.module))
        return holder, attribute

    def installed_digest(self) -> str:
        """SHA-256 of the source that is installed."""
        holder, attribute = self.owner()
        source = inspect.getsource(inspect.unwrap(getattr(holder, attribute)))
        return hashlib.sha256(source.encode()).hexdigest()


def _cached_grammar_parse(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.lru_cache(_MAX_PARSED)
    def parse(text: str, rule_name: str) -> Any:
        return original(text, rule_name=rule_name)

    @functools.wraps(original)
    def replacement(text: str, *, rule_name: str, trace: bool = False) -> Any:
        # The caller writes the context into the symbols it gets, so each gets its own.
        return copy.deepcopy(parse(text, rule_name))

    return replacement


def _cached_query_parse(original: Callable[[str], Any]) -> Any:
    @functools.lru_cache(_MAX_PARSED)
    def parse(expression: str) -> Any:
        return original(expression)

    # The original is a classmethod of a class that has no subclasses. Rules are only read.
    return staticmethod(functools.wraps(original)(parse))


def _shallow_context(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replacement(context: dict[str, Any]) -> dict[str, Any]:
        # The two dicts are changed by their holder, what they hold is only read.
        return {
            "state": context["state"],
            "facts": context["facts"],
            "variables": dict(context["variables"]),
            "mapping": dict(context["mapping"]),
            "entity_infos": context["entity_infos"],
        }

    return replacement


def _cached_translation(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.lru_cache(_MAX_TRANSLATED)
    def translate(domain: str, problem: str) -> Any:
        return original(domain, problem)

    @functools.wraps(original)
    def replacement(
        domain: str, problem: str, verbose: bool = False, optimize: bool = False
    ) -> Any:
        # The optimised translation would feed the planner behind "policy_commands". We never ask
        # for those (it can search for minutes), so the planner gets the plain one.
        return translate(domain, problem)

    return replacement


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="textworld.envs.pddl.textgen",
        name="_parse_and_convert",
        digest="449a494829320c03f7e9db6a7239b95047ccab4849f68db2b1af10ad0031b2e8",
        why="every phrase is parsed anew at every step",
        replace=_cached_grammar_parse,
    ),
    Patch(
        module="textworld.logic",
        name="Rule.parse_conjunctive_query",
        digest="f0c0f15f1edbec89127929e6d4983c7259300e020d220efc631c1603400822ac",
        why="every condition is parsed anew at every step",
        replace=_cached_query_parse,
    ),
    Patch(
        module="textworld.envs.pddl.textgen",
        name="copy_context",
        digest="ab04ca2ab859dd9ea9ac15f73efb2fdcdb4e205d353c5f66ed33fb74a403442a",
        why="names and types of entities are copied deeply for every phrase",
        replace=_shallow_context,
    ),
    Patch(
        module="fast_downward",
        name="pddl2sas",
        digest="3b8ca044f0a3237978b5b73c178f0cbf8633e4c18e944d43574e911caf7e0c6b",
        why="a game is translated twice at loading and twice at every reset",
        replace=_cached_translation,
    ),
)


@functools.cache
def apply_patches() -> tuple[str, ...]:
    """Install the patches in this process, once; returns the names of those installed."""
    installed = []
    for patch in PATCHES:
        try:
            fits = patch.installed_digest() == patch.digest
        except (AttributeError, ImportError, OSError, TypeError):
            fits = False
        if not fits:
            logger.warning(
                "alfworld: %s.%s is not the source that its faster replacement was written for, so "
                "it stays as it is (%s). Use textworld 1.7.0 for full speed.",
                patch.module,
                patch.name,
                patch.why,
            )
            continue
        holder, attribute = patch.owner()
        setattr(holder, attribute, patch.replace(getattr(holder, attribute)))
        installed.append(f"{patch.module}.{patch.name}")
    return tuple(installed)


def forget_old_facts() -> None:
    """Empty TextWorld's registry of facts when it has grown large.

    Every fact that was ever made is kept for good, half a megabyte a game; a worker that plays
    thousands of games would grow by gigabytes. Facts compare by value, so new equal ones serve.
    """
    registry: dict[Any, Any] = importlib.import_module("mementos.core")._memento_cache
    if len(registry) > _MAX_REMEMBERED:
        registry.clear()
