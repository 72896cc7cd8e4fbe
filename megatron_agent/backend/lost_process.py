"""Telling a lost process from an error of the program: the one is cured by a fresh start.

A killed server or rank shows in many ways: Ray's own errors where it was called, and whatever the
ranks beside it raise when a collective loses its partner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from megatron_agent.errors import LostProcessError

EXIT_RESTART = 86
"""Exit code of a run that lost a process: please start it again."""

LOST_ERRORS = (
    RayActorError,
    WorkerCrashedError,
    NodeDiedError,
    LocalRayletDiedError,
    ObjectLostError,
    OutOfMemoryError,
    LostProcessError,
)
PING_TIMEOUT_S = 10.0
"""Ray knows of a death within a second or two; one that hangs is not dead."""


def is_lost_process(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, tells of a process that is gone.

    An actor whose constructor raised is gone too, but a fresh start would raise the same again: it
    counts only when a lost process is behind what was raised.

    Example:
        >>> is_lost_process(ray.exceptions.NodeDiedError("node2"))
        True
        >>> is_lost_process(ValueError("negative"))
        False
    """
    return any(
        isinstance(part, LOST_ERRORS) and not _failed_in_constructor(part)
        for part in _origins(error)
    )


def _failed_in_constructor(error: BaseException) -> bool:
    return isinstance(error, RayActorError) and bool(error.actor_init_failed)


def _origins(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        part = waiting.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        # A RayTaskError keeps what was raised in the other process as `cause`.
        waiting += [part.__cause__, part.__context__, getattr(part, "cause", None)]
        if _failed_in_constructor(part):
            # Ray keeps what the constructor raised as an argument alone.
            waiting += [argument for argument in part.args if isinstance(argument, BaseException)]


def dead_actors(actors: Iterable[Any]) -> list[str]:
    """What Ray says of those actors that are gone.

    Args:
        actors: handles.

    Returns:
        One text for each dead actor; an actor that is busy counts as alive, and one whose
        constructor raised as an error of the program (`is_lost_process`).
    """
    pings = [actor.__ray_ready__.remote() for actor in actors]
    if not pings:
        return []
    answered, _ = ray.wait(pings, num_returns=len(pings), timeout=PING_TIMEOUT_S)
    dead = []
    for ping in answered:
        try:
            ray.get(ping)
        except RayActorError as error:
            if is_lost_process(error):
                dead.append(str(error))
        except Exception:  # it answered, whatever it said
            continue
    return dead


def loss_behind(error: BaseException, trainer: Any) -> str:
    """The lost process behind an error of a run, in one line; empty when there is none.

    Args:
        error: what ended the training.
        trainer: verl's trainer, as far as it was made; its ranks and servers are asked.
    """
    if is_lost_process(error):
        return first_line(error)
    ranks, servers = ranks_of(trainer), servers_of(trainer)
    dead = dead_actors([*ranks, *servers])
    return f"{len(dead)} of {len(ranks)} ranks and {len(servers)} servers are gone" if dead else ""


def ranks_of(trainer: Any) -> list[Any]:
    """The actors of verl's worker groups, as far as they were made."""
    names = ("actor_rollout_wg", "critic_wg", "ref_policy_wg")
    groups = (getattr(trainer, name, None) for name in names)
    return [rank for group in groups if group is not None for rank in group.workers]


def servers_of(trainer: Any) -> list[Any]:
    """The actors of the inference servers, as far as they were made."""
    manager = getattr(trainer, "llm_server_manager", None)
    return list(getattr(manager, "server_handles", None) or ())


def first_line(error: BaseException) -> str:
    """An error's type and the first line of what it says."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
