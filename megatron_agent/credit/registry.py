"""The credit methods by name. A method turns `CreditRows` into a `CreditResult`.

Another package adds one by an entry point; its module is imported only when a run asks for that
name::

    # setup.py of the other package
    entry_points={"megatron_agent.credit": ["hindsight = my_package.hindsight:hindsight"]}

The name in the entry point is the name in ``algorithm.adv_estimator``. Built-in names win over
entry points.

A method says what it needs beyond the columns that every batch has, so that a trainer fetches no
more than that, and which levels it compares, so that a penalty can be refused where it would have
nothing to enter. A method of another package says so with `register_credit` in its own module;
without it, the defaults of `MethodFacts` hold.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, get_args

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import OPTIONAL_COLUMNS, CreditRows
from megatron_agent.errors import RegistryError

CreditMethod = Callable[[CreditRows, CreditConfig], CreditResult]
"""Gets rows that are valid and sorted by (group, session, step); returns arrays in the same
order."""

ENTRY_POINT_GROUP = "megatron_agent.credit"

Level = Literal["episode", "step"]
LevelsOf = Callable[[CreditConfig], tuple[Level, ...]]


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """What a trainer and the checks have to know of a method."""

    needs: tuple[str, ...] = ("anchor",)
    """Optional columns of `CreditRows` that must be there, without their ``_N``."""
    levels: tuple[Level, ...] = ("episode", "step")
    """What is scored: whole episodes, single steps, or both."""
    levels_of: LevelsOf | None = None
    """Further levels, where options decide."""

    def levels_with(self, config: CreditConfig) -> tuple[Level, ...]:
        """What is scored under these options."""
        return self.levels + (self.levels_of(config) if self.levels_of else ())


_methods: dict[str, CreditMethod] = {}
_facts: dict[str, MethodFacts] = {}


def register_credit(
    name: str,
    *,
    needs: Sequence[str] = ("anchor",),
    levels: Sequence[Level] = ("episode", "step"),
    levels_of: LevelsOf | None = None,
) -> Callable[[CreditMethod], CreditMethod]:
    """Decorator that registers a credit method.

    Args:
        name: value of ``algorithm.adv_estimator``.
        needs: optional columns that must be there: ``anchor``, ``anchor_text``, ``value``,
            ``log_prob``, ``entropy``, ``failed``.
        levels: whether episodes, steps or both are scored.
        levels_of: gives further levels, where that depends on options.

    Raises:
        RegistryError: the name is taken, or there is no such column or level.

    Example::

        @register_credit("my_method", needs=("value",), levels=("step",))
        def my_method(rows: CreditRows, config: CreditConfig) -> CreditResult: ...
    """
    _check_facts(name, "needs", needs, OPTIONAL_COLUMNS)
    _check_facts(name, "levels", levels, get_args(Level))

    def register(method: CreditMethod) -> CreditMethod:
        taken = _methods.get(name)
        if taken is not None:
            raise RegistryError(
                f"credit method {name!r} must be registered once, got {_home(method)} while "
                f"{_home(taken)} has the name. Choose another name."
            )
        _methods[name] = method
        _facts[name] = MethodFacts(needs=tuple(needs), levels=tuple(levels), levels_of=levels_of)
        return method

    return register


def credit_names() -> tuple[str, ...]:
    """All names that can be asked for, sorted: registered ones and those of entry points."""
    return tuple(sorted({*_methods, *(point.name for point in _entry_points())}))


def credit_method(name: str) -> CreditMethod:
    """Look a method up.

    Raises:
        RegistryError: nothing has this name, or the entry point that has it does not load.
    """
    if not isinstance(name, str) or name not in _methods:
        _load_entry_point(name)
    return _methods[name]


def credit_facts(name: str) -> MethodFacts:
    """What a method needs and scores.

    Raises:
        RegistryError: as `credit_method`.
    """
    credit_method(name)
    return _facts[name]


def credit_needs(name: str) -> frozenset[str]:
    """Optional columns of `CreditRows` that a method needs, without their ``_N``.

    Raises:
        RegistryError: as `credit_method`.

    Example:
        >>> import megatron_agent.credit
        >>> credit_needs("gae"), credit_needs("grpo")
        (frozenset({'value'}), frozenset())
    """
    return frozenset(credit_facts(name).needs)


def _load_entry_point(name: str) -> None:
    points = [point for point in _entry_points() if point.name == name]
    if not points:
        names = credit_names()
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise RegistryError(
            f"algorithm.adv_estimator must be a credit method, one of "
            f"{', '.join(names)}, got {name!r}.{hint}"
        )
    if len(points) > 1:
        raise RegistryError(
            f"credit method {name!r} must come from one package, got entry points "
            f"{', '.join(sorted(point.value for point in points))}. Uninstall all but one."
        )
    try:
        method = points[0].load()
    except Exception as error:
        raise RegistryError(
            f"credit method {name!r} must load from its entry point {points[0].value}, got "
            f"{type(error).__name__}: {error}. Fix or uninstall that package."
        ) from error
    if not callable(method) and name not in _methods:
        raise RegistryError(
            f"credit method {name!r} must be a function, got {type(method).__name__} from "
            f"entry point {points[0].value}. Point it to the function, as in module:function."
        )
    if name not in _methods:  # importing the module may have run the decorator
        register_credit(name)(method)


def _check_facts(name: str, what: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [item for item in given if item not in known]
    if isinstance(given, str) or unknown:
        raise RegistryError(
            f"{what} of credit method {name!r} must be a tuple of {', '.join(known)}, got "
            f"{given!r}. Correct its register_credit(...)."
        )


def _entry_points() -> list[EntryPoint]:
    """Entry points of our group, each once (a package may be on the path twice)."""
    unique = {(point.name, point.value): point for point in entry_points(group=ENTRY_POINT_GROUP)}
    return list(unique.values())


def _home(method: CreditMethod) -> str:
    return f"{method.__module__}.{getattr(method, '__qualname__', repr(method))}"
