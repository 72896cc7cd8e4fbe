"""Hydra's composition of ``configs/`` on top of verl's files, with messages a user can act on.

verl's folder joins the search path as a ``file://`` address: ``pkg://`` would import verl, which
takes longer than all other checks together.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from megatron_agent.config.findings import ConfigProblemsError, Findings
from megatron_agent.config.overrides import (
    CONFIGS_DIR,
    DEFAULT_ROOT,
    check_root,
    drop_unknown,
    group_lines,
    hydra_line,
    is_group,
    parse_overrides,
)
from megatron_agent.config.values import ConfigValues
from megatron_agent.config.verl_tree import verl_config_dir
from megatron_agent.errors import ConfigError

DOES_NOT_APPLY = (HydraException, TypeError, ValueError)
"""What Hydra raises for an override that does not fit: a null or a number in the place of one of
verl's files (``algorithm=null``) escapes from it as a bare error."""


def compose_config(
    overrides: Sequence[str] = (),
    *,
    config_name: str = DEFAULT_ROOT,
    findings: Findings | None = None,
    amend: Callable[[DictConfig], None] | None = None,
) -> DictConfig:
    """The configuration of a run: verl's defaults, our files, the command line; interpolations
    resolved.

    Args:
        overrides: ``key=value`` (a key that exists), ``group=name``, or Hydra's ``+key=value``,
            ``~key``.
        config_name: a root below ``configs/``.
        findings: when given, overrides that cannot be applied are recorded there and left out, so
            that the rest can still be checked; otherwise they raise.
        amend: changes values before interpolations are resolved, so that what follows from them
            follows; for one that is known only when others are.

    Raises:
        ConfigProblemsError: an unknown root, group choice or key, an override that does not parse,
            or what ``amend`` refuses.
        ConfigError: an interpolation points at nothing.

    Example:
        >>> compose_config(["env.max_steps=20"]).env.max_steps
        20
    """
    collected = findings if findings is not None else Findings()
    root = check_root(config_name, collected)
    parsed = parse_overrides(overrides, collected)
    groups = group_lines(parsed, collected)
    settings = [override for override in parsed if not is_group(override)]
    try:
        config = _compose(root, [*groups, *map(hydra_line, settings)])
    except DOES_NOT_APPLY:
        config = _compose_what_applies(root, groups, settings, collected)
    try:
        if amend is not None:
            config = copy.deepcopy(config)  # compositions are kept for the next call
            amend(config)
        # Resolvers do not travel into Ray processes, so interpolations end here.
        plain = as_plain(config)
    except ConfigError as error:
        # Nothing can be checked on values that do not exist: tell what is known so far.
        raise ConfigProblemsError([*collected.problems, error]) from error
    if findings is None:
        collected.raise_if_any()
    resolved = OmegaConf.create(dict(plain))
    OmegaConf.set_struct(resolved, True)
    return resolved


def as_plain(config: DictConfig) -> Mapping[str, Any]:
    """The configuration as plain nested dicts, for YAML and JSON.

    Raises:
        ConfigError: an interpolation points at nothing.
    """
    return ConfigValues.from_config(config).tree


def _compose_what_applies(
    root: str, groups: Sequence[str], settings: Sequence[Override], findings: Findings
) -> DictConfig:
    """Compose with the overrides that can be applied and record the others."""
    base_tree = OmegaConf.to_container(_compose(root, groups), resolve=False)
    assert isinstance(base_tree, dict)
    plain_tree = {str(name): value for name, value in base_tree.items()}
    known = drop_unknown(settings, plain_tree, findings)
    try:
        return _compose(root, [*groups, *map(hydra_line, known)])
    except DOES_NOT_APPLY:
        # Rare: a key exists but the override does not fit. Find which one, a composition each.
        applied: list[str] = []
    for override in known:
        line = hydra_line(override)
        try:
            _compose(root, [*groups, *applied, line])
        except DOES_NOT_APPLY as error:
            reason = str(error).splitlines()[0].rstrip(".")
            remedy = "'megatron-agent show' prints the configuration without it."
            findings.problem(override.key_or_group, f"must apply ({reason})", line, remedy)
        else:
            applied.append(line)
    return _compose(root, [*groups, *applied])


def _compose(root: str, lines: Sequence[str]) -> DictConfig:
    return _compose_once(root, tuple(lines))


# The search for overrides that do not apply composes some lines twice. Nobody changes the result.
@functools.cache
def _compose_once(root: str, lines: tuple[str, ...]) -> DictConfig:
    OmegaConf.register_new_resolver("product", _product, replace=True)
    OmegaConf.register_new_resolver("sum", _sum, replace=True)
    OmegaConf.register_new_resolver("div_up", _div_up, replace=True)
    _start_hydra_without_plugins()
    GlobalHydra.instance().clear()
    search_path = f"hydra.searchpath=[file://{verl_config_dir()}]"
    with initialize_config_dir(config_dir=str(CONFIGS_DIR), version_base="1.3"):
        return compose(root, overrides=[search_path, *lines])


def _start_hydra_without_plugins() -> None:
    """Create Hydra's plugin registry with its own plugins only.

    It would import every installed ``hydra_plugins`` module; one that comes with Megatron's data
    tools takes a second and logs tracebacks for want of its own settings. A None in ``sys.modules``
    makes Hydra see none.
    """
    if Plugins in Singleton._instances:
        return
    name = "hydra_plugins"
    hidden = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        Plugins.instance()
    finally:
        del sys.modules[name]
        if hidden is not None:
            sys.modules[name] = hidden


def _product(*factors: Any) -> int:
    """``${product:2,3}``; a factor that is no integer is reported by the check of its own key."""
    return math.prod(factor for factor in factors if isinstance(factor, int))


def _div_up(number: Any, divisor: Any) -> int:
    """``${div_up:16,5}`` is 4; 1 where there are no positive integers to divide."""
    are_fine = isinstance(number, int) and isinstance(divisor, int) and divisor > 0
    return math.ceil(number / divisor) if are_fine else 1


def _sum(*terms: Any) -> int:
    """``${sum:2,3}``; as `_product` with what is no integer."""
    return sum(term for term in terms if isinstance(term, int))
