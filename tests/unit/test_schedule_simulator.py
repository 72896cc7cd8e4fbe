"""The simulation behind ``benchmarks/rollout_schedule.py``, on cases done by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.rollout_schedule import MEASURED, draw_measured, read_episodes, with_slow_resets
from benchmarks.schedule_simulator import EpisodePlan, Machine, Schedule, simulate

pytestmark = pytest.mark.unit


def a_plan(tokens_T: Sequence[float], reset_s: float = 0.0, env_s: float = 0.0) -> EpisodePlan:
    return EpisodePlan(reset_s=reset_s, tokens_T=tokens_T, env_s_T=[env_s] * len(tokens_T))


def a_machine(**changes: float) -> Machine:
    """A token takes a second, however many sequences there are."""
    return Machine(**{"num_workers": 8, "base_s": 1.0, "per_sequence_s": 0.0} | changes)  # type: ignore[arg-type]


def seconds(plans: Sequence[EpisodePlan], machine: Machine, schedule: Schedule) -> float:
    return simulate([plans], machine, schedule, num_seats=len(plans)).seconds


@pytest.mark.parametrize("schedule", ["lock_step", "coroutines", "first_started", "first_finished"])
def test_one_episode_takes_the_sum_of_its_parts(schedule: Schedule):
    plan = a_plan([3, 5], reset_s=1.0, env_s=2.0)
    assert seconds([plan], a_machine(), schedule) == 1 + 3 + 2 + 5 + 2


def test_lock_step_waits_for_the_slowest_everywhere_and_coroutines_nowhere():
    plans = [a_plan([1, 9], reset_s=1.0), a_plan([9, 1], reset_s=4.0)]
    assert seconds(plans, a_machine(), "lock_step") == 4 + 9 + 9
    assert seconds(plans, a_machine(), "coroutines") == 4 + 9 + 1


def test_sequences_share_the_rate():
    # A token takes a second for each sequence: both get 2 tokens by 4 s, one needs 2 more, alone.
    machine = a_machine(base_s=0.0, per_sequence_s=1.0)
    assert seconds([a_plan([2]), a_plan([4])], machine, "coroutines") == 6
    halved = a_machine(base_s=0.0, per_sequence_s=1.0, replicas=2)
    assert seconds([a_plan([2]), a_plan([4])], halved, "coroutines") == 3


def test_a_sequence_that_comes_later_slows_down_those_that_run():
    # Alone until 1 s (1 token), together until the second has its 2 (5 s), then 1 token alone.
    machine = a_machine(base_s=0.0, per_sequence_s=1.0)
    plans = [a_plan([4]), a_plan([2], reset_s=1.0)]
    assert seconds(plans, machine, "coroutines") == 6


def test_a_full_batch_makes_others_wait():
    machine = a_machine(max_batch=1)
    assert seconds([a_plan([2]), a_plan([4]), a_plan([1])], machine, "coroutines") == 7
    assert seconds([a_plan([2]), a_plan([4]), a_plan([1])], machine, "lock_step") == 7


def test_a_worker_serves_one_after_the_other():
    plans = [a_plan([1], reset_s=2.0, env_s=3.0) for _ in range(2)]
    assert seconds(plans, a_machine(), "coroutines") == 2 + 1 + 3
    # Resets end at 2 and 4; the first step is asked for at 3, behind the second reset.
    assert seconds(plans, a_machine(num_workers=1), "coroutines") == 2 + 2 + 3 + 3
    assert seconds(plans, a_machine(num_workers=1), "lock_step") == 4 + 1 + 6


def test_steps_wait_for_one_reset_and_not_for_all():
    plans = [a_plan([0.5], reset_s=1.0, env_s=1.0), *(a_plan([0.5], reset_s=1.0) for _ in range(3))]
    # Resets end at 1 and 2; the step, asked for at 1.5, ends at 3; the other resets at 4 and 5.
    assert seconds(plans, a_machine(num_workers=1), "coroutines") == 5.5


def test_redundant_starts_do_without_the_slow_reset():
    plans = [a_plan([4], reset_s=1.0), a_plan([4], reset_s=50.0), a_plan([4], reset_s=2.0)]
    outcome = simulate([plans], a_machine(), "first_started", num_seats=2)
    assert (outcome.seconds, outcome.mean_steps_kept) == (2 + 4, 1)
    assert simulate([plans], a_machine(), "coroutines", num_seats=2).seconds == 54


def test_a_reset_that_is_no_longer_needed_is_not_begun():
    plans = [a_plan([4], reset_s=1.0, env_s=1.0) for _ in range(2)]
    assert simulate([plans], a_machine(num_workers=1), "first_started", num_seats=1).seconds == 6


def test_keeping_the_first_to_finish_keeps_the_short_ones():
    plans = [a_plan([1] * 10), a_plan([1] * 2), a_plan([1] * 4)]
    outcome = simulate([plans], a_machine(), "first_finished", num_seats=2)
    assert (outcome.seconds, outcome.mean_steps_kept) == (4, 3)
    fair = simulate([plans], a_machine(), "first_started", num_seats=2)
    assert fair.mean_steps_kept == 6


def test_the_kept_sample_of_redundant_starts_has_the_length_of_all():
    rng = np.random.default_rng(0)
    draw = draw_measured(MEASURED["frozenlake"])
    groups = [[with_slow_resets(draw(rng), rng, 0.2, 9.0) for _ in range(6)] for _ in range(64)]
    everybody = np.mean([len(plan.tokens_T) for group in groups for plan in group])
    machine = a_machine(base_s=0.01, per_sequence_s=0.0001)
    fair = simulate(groups, machine, "first_started", num_seats=4)
    biased = simulate(groups, machine, "first_finished", num_seats=4)
    assert abs(fair.mean_steps_kept / everybody - 1) < 0.05
    assert biased.mean_steps_kept / everybody < 0.9
    assert simulate(groups, machine, "first_started", num_seats=4) == fair


def test_a_journal_gives_episodes_as_they_were(tmp_path):
    turn = '{"num_response_tokens": 10, "num_prompt_tokens": 100, "env_s": 0.5}'
    path = tmp_path / "episodes.jsonl"
    path.write_text(f'{{"reset_s": 0.25, "turns": [{turn}, {turn}]}}\n{{"turns": []}}\n{{"turns"')
    assert read_episodes([str(path)]) == [
        EpisodePlan(reset_s=0.25, tokens_T=[11.0, 11.0], env_s_T=[0.5, 0.5])
    ]
