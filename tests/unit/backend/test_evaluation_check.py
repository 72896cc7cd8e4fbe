"""An evaluation that lost sessions, or could not play them, is no evaluation."""

from __future__ import annotations

import pytest

from megatron_agent.backend.evaluation_check import check_evaluation
from megatron_agent.errors import FailureRateError

pytestmark = pytest.mark.unit


def test_failed_episodes_within_the_rate_are_defeats_and_no_more():
    infos = {"failure": ["", "env_error: it died"], "fatal": ["", ""]}
    check_evaluation(infos, num_expected=2, max_rate=0.5)


def test_too_many_failed_episodes_stop_the_run_with_the_reason():
    infos = {"failure": ["env_error: it died", "env_error: again", ""], "fatal": ["", "", ""]}
    with pytest.raises(FailureRateError) as raised:
        check_evaluation(infos, num_expected=3, max_rate=0.5)
    assert str(raised.value) == (
        "2 of 3 episodes of the evaluation failed (env_error 2), more than "
        "env.max_failure_rate=0.5 allows. First failure: env_error: it died"
    )


def test_a_session_that_could_not_be_played_is_not_a_defeat():
    infos = {"failure": ["", "TaskError: no"], "fatal": ["", "TaskError: no"]}
    with pytest.raises(FailureRateError, match="evaluation could not be played: TaskError: no"):
        check_evaluation(infos, num_expected=2, max_rate=1.0)


@pytest.mark.parametrize("infos", [{}, {"failure": [""], "fatal": [""]}])
def test_lost_sessions_are_missed(infos):
    found = len(infos.get("failure", []))
    with pytest.raises(FailureRateError, match=f"evaluation has {found} of 2 sessions"):
        check_evaluation(infos, num_expected=2, max_rate=1.0)
