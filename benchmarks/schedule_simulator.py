"""A discrete-event simulation of one iteration's rollout: environments, workers, inference servers.

What is modelled, and what is not:

- **Generation** is one queue with processor sharing. With ``b`` sequences under way, one token of
  each takes ``base_s + per_sequence_s * b / replicas`` seconds: the weights are read once a token
  however many sequences there are, and each sequence adds its share. At most ``max_batch`` of them
  run on a replica, the others wait in order. Replicas are balanced perfectly. What reading a prompt
  costs is in the plans, as tokens.
- **Workers** serve one request at a time, in order, and at most one reset is in line at each, as in
  the pool. Transport and prompt building are left out; they are microseconds.
- **Lock-step** waits for everybody after the resets, after each generation and after each step.

Times are seconds; everything is decided by the plans that are passed in, so equal plans give equal
times.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Schedule = Literal["lock_step", "coroutines", "first_started", "first_finished"]


@dataclass(frozen=True, kw_only=True)
class EpisodePlan:
    """What one episode would take: it is the same under every schedule."""

    reset_s: float
    tokens_T: Sequence[float]
    """Work of each generation, in tokens, prompt included at its weight."""
    env_s_T: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is to run on; see the module's docstring."""

    num_workers: int
    base_s: float
    per_sequence_s: float
    replicas: int = 1
    max_batch: int = 1_000_000

    def token_s(self, num_sequences: int) -> float:
        """Seconds for one more token of each of so many sequences."""
        return self.base_s + self.per_sequence_s * num_sequences / self.replicas


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One simulated iteration."""

    seconds: float
    mean_steps_kept: float
    """Mean length of the episodes that are kept, to be compared with that of all."""


class Generation:
    """The inference servers: sequences come, share the rate, and finish."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._served = 0.0  # tokens that each sequence has got which was there all the time
        self._now_s = 0.0
        self._running: list[tuple[float, int]] = []  # (value of _served at its end, member)
        self._waiting: deque[tuple[int, float]] = deque()

    def join(self, now_s: float, member: int, tokens: float) -> None:
        """A member asks for ``tokens``; not earlier than what was told before."""
        self._advance(now_s)
        self._waiting.append((member, tokens))
        self._admit()

    def next_end_s(self) -> float:
        """When the next sequence finishes if nobody joins before; infinite for none."""
        if not self._running:
            return math.inf
        left = max(0.0, self._running[0][0] - self._served)
        return self._now_s + left * self._machine.token_s(len(self._running))

    def finish(self, now_s: float) -> int:
        """Take out the member whose sequence ends at ``next_end_s``."""
        self._served = max(self._served, self._running[0][0])
        self._now_s = now_s
        _, member = heapq.heappop(self._running)
        self._admit()
        return member

    def leave(self, now_s: float, members: set[int]) -> None:
        """Sequences of members that are given up."""
        self._advance(now_s)
        self._running = [entry for entry in self._running if entry[1] not in members]
        heapq.heapify(self._running)
        self._waiting = deque(entry for entry in self._waiting if entry[0] not in members)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._machine.max_batch * (
            self._machine.replicas
        ):
            member, tokens = self._waiting.popleft()
            heapq.heappush(self._running, (self._served + tokens, member))

    def _advance(self, now_s: float) -> None:
        if self._running:
            self._served += (now_s - self._now_s) / self._machine.token_s(len(self._running))
        self._now_s = now_s


@dataclass
class _Worker:
    free_s: float = 0.0
    resets: deque[int] = field(default_factory=deque)


Keep = Literal["first_started", "first_finished"]


class _Iteration:
    """Episodes that run as coroutines, each at its own pace."""

    def __init__(
        self,
        groups: Sequence[Sequence[EpisodePlan]],
        machine: Machine,
        num_seats: int,
        keep: Keep,
    ) -> None:
        self._plans = [plan for group in groups for plan in group]
        self._group_of = [number for number, group in enumerate(groups) for _ in group]
        self._members: list[list[int]] = [[] for _ in groups]
        for member, number in enumerate(self._group_of):
            self._members[number].append(member)
        self._num_seats, self._keep = num_seats, keep
        self._workers = [_Worker() for _ in range(machine.num_workers)]
        self._generation = Generation(machine)
        self._events: list[tuple[float, int, str]] = []  # (time, member, reset or step)
        self._step = [0] * len(self._plans)
        self._started: list[list[int]] = [[] for _ in groups]
        self._finished: list[list[int]] = [[] for _ in groups]
        self._given_up: set[int] = set()

    def run(self) -> Outcome:
        for member in range(len(self._plans)):
            self._worker_of(member).resets.append(member)
        for worker in self._workers:
            self._next_reset(0.0, worker)
        now_s = 0.0
        while any(len(done) < self._num_seats for done in self._finished):
            generated_s = self._generation.next_end_s()
            if self._events and self._events[0][0] <= generated_s:
                now_s, member, what = heapq.heappop(self._events)
                self._env_done(now_s, member, what)
            else:
                now_s = generated_s
                member = self._generation.finish(now_s)
                self._ask_env(
                    now_s, member, self._plans[member].env_s_T[self._step[member]], "step"
                )
        lengths = [len(self._plans[member].tokens_T) for done in self._finished for member in done]
        return Outcome(seconds=now_s, mean_steps_kept=sum(lengths) / len(lengths))

    def _env_done(self, now_s: float, member: int, what: str) -> None:
        if what == "reset":
            self._next_reset(now_s, self._worker_of(member))
            if member in self._given_up:
                return
            self._take_seat(member)
            self._generation.join(now_s, member, self._plans[member].tokens_T[0])
            return
        if member in self._given_up:
            return
        self._step[member] += 1
        if self._step[member] < len(self._plans[member].tokens_T):
            tokens = self._plans[member].tokens_T[self._step[member]]
            self._generation.join(now_s, member, tokens)
            return
        group = self._group_of[member]
        self._finished[group].append(member)
        if self._keep == "first_finished" and len(self._finished[group]) == self._num_seats:
            self._give_up(now_s, group, set(self._finished[group]))

    def _take_seat(self, member: int) -> None:
        group = self._group_of[member]
        self._started[group].append(member)
        if self._keep == "first_started" and len(self._started[group]) == self._num_seats:
            self._given_up |= set(self._members[group]) - set(self._started[group])

    def _give_up(self, now_s: float, group: int, kept: set[int]) -> None:
        dropped = set(self._members[group]) - kept
        self._given_up |= dropped
        self._generation.leave(now_s, dropped)

    def _next_reset(self, now_s: float, worker: _Worker) -> None:
        while worker.resets:
            member = worker.resets.popleft()
            if member not in self._given_up:
                self._ask_env(now_s, member, self._plans[member].reset_s, "reset")
                return

    def _ask_env(self, now_s: float, member: int, seconds: float, what: str) -> None:
        worker = self._worker_of(member)
        worker.free_s = max(worker.free_s, now_s) + seconds
        heapq.heappush(self._events, (worker.free_s, member, what))

    def _worker_of(self, member: int) -> _Worker:
        return self._workers[member % len(self._workers)]


def simulate(
    groups: Sequence[Sequence[EpisodePlan]],
    machine: Machine,
    schedule: Schedule,
    *,
    num_seats: int,
) -> Outcome:
    """Play one iteration.

    Args:
        groups: plans of each group's members; ``num_seats`` of them, and for schedules with
            redundancy some more.
        machine: what it runs on.
        schedule: ``lock_step``; ``coroutines``; ``first_started``, which keeps the members whose
            resets end first and closes the others; ``first_finished``, which plays all and keeps
            those that end first.
        num_seats: episodes that a group needs. Without redundancy only so many are played.
    """
    if schedule in ("lock_step", "coroutines"):
        groups = [group[:num_seats] for group in groups]
    if schedule == "lock_step":
        return _lock_step([plan for group in groups for plan in group], machine)
    keep: Keep = "first_finished" if schedule == "first_finished" else "first_started"
    return _Iteration(groups, machine, num_seats, keep).run()


def _lock_step(plans: Sequence[EpisodePlan], machine: Machine) -> Outcome:
    everybody = list(range(len(plans)))
    now_s = _busiest(everybody, [plan.reset_s for plan in plans], machine)
    for step_idx in range(max(len(plan.tokens_T) for plan in plans)):
        playing = [member for member in everybody if step_idx < len(plans[member].tokens_T)]
        generation = Generation(machine)
        for member in playing:
            generation.join(0.0, member, plans[member].tokens_T[step_idx])
        took_s = 0.0
        for _ in playing:
            took_s = generation.next_end_s()
            generation.finish(took_s)
        seconds = [plans[member].env_s_T[step_idx] for member in playing]
        now_s += took_s + _busiest(playing, seconds, machine)
    lengths = [len(plan.tokens_T) for plan in plans]
    return Outcome(seconds=now_s, mean_steps_kept=sum(lengths) / len(lengths))


def _busiest(members: Sequence[int], seconds: Sequence[float], machine: Machine) -> float:
    """Until the last worker is through with its share."""
    shares = [0.0] * machine.num_workers
    for member, took_s in zip(members, seconds, strict=True):
        shares[member % machine.num_workers] += took_s
    return max(shares)
