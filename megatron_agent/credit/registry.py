"""The credit methods by name. A method turns `CreditRows` into a `CreditResult`.

Another package adds one by an entry point; its module is imported only when a run asks for that
name::

    # setup.py of the other package
    entry_points={"megatron_agent.credit": ["hindsight = my_package.hindsight:hindsight"]}

The name in the entry point is the name in ``algorithm.adv_estimator``. Built-in names win over
entry points.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.errors import RegistryError

CreditMethod = Callable[[CreditRows, CreditConfig], CreditResult]
"""Gets rows that are valid and sorted by (group, session, step); returns arrays in the same
order."""

ENTRY_POINT_GROUP = "megatron_agent.credit"

_methods: dict[str, CreditMethod] = {}


def register_credit(name: str) -> Callable[[CreditMethod], CreditMethod]:
    """Decorator that registers a credit method.

    Raises:
        RegistryError: the name is taken.

    Example::

        @register_credit("my_method")
        def my_method(rows: CreditRows, config: CreditConfig) -> CreditResult: ...
    """

    def register(method: CreditMethod) -> CreditMethod:
        taken = _methods.get(name)
        if taken is not None:
            raise RegistryError(
                f"credit method {name!r} must be registered once, got {_home(method)} while "
                f"{_home(taken)} has the name. Choose another name."
            )
        _methods[name] = method
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
    if name not in _methods:
        _load_entry_point(name)
    return _methods[name]


def _load_entry_point(name: str) -> None:
    points = [point for point in _entry_points() if point.name == name]
    if not points:
        names = credit_names()
        near = difflib.get_close_matches(name, names, n=1)
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


def _entry_points() -> list[EntryPoint]:
    """Entry points of our group, each once (a package may be on the path twice)."""
    unique = {(point.name, point.value): point for point in entry_points(group=ENTRY_POINT_GROUP)}
    return list(unique.values())


def _home(method: CreditMethod) -> str:
    return f"{method.__module__}.{getattr(method, '__qualname__', repr(method))}"
