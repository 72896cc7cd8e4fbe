"""A lost process is told from an error of the program, however it shows."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

ray_exceptions = pytest.importorskip("ray.exceptions")

from megatron_agent.backend import loss_watch, lost_process  # noqa: E402
from megatron_agent.backend.failure_rate import fatal_error  # noqa: E402
from megatron_agent.backend.lost_process import is_lost_process, loss_behind  # noqa: E402
from megatron_agent.errors import FailureRateError, LostProcessError  # noqa: E402

pytestmark = pytest.mark.unit


def _task_error(cause: Exception) -> Exception:
    error = ray_exceptions.RayTaskError("update_actor", "Traceback ...", cause)
    return error.as_instanceof_cause()


def test_rays_own_errors_are_losses() -> None:
    assert is_lost_process(ray_exceptions.ActorDiedError())
    assert is_lost_process(ray_exceptions.NodeDiedError("node2"))
    assert is_lost_process(_task_error(ray_exceptions.ActorDiedError()))


def test_what_was_raised_from_a_loss_is_one() -> None:
    try:
        try:
            raise ray_exceptions.ActorDiedError
        except ray_exceptions.ActorDiedError as error:
            raise RuntimeError("no weights") from error
    except RuntimeError as error:
        assert is_lost_process(error)


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), _task_error(ValueError("x")), ray_exceptions.GetTimeoutError("slow"), None],
)
def test_other_errors_are_none(error) -> None:
    assert not is_lost_process(error)


def _failed_constructor(cause: Exception) -> Exception:
    task_error = ray_exceptions.RayTaskError("Worker.__init__", "Traceback ...", cause)
    return ray_exceptions.ActorDiedError(task_error)


def test_a_constructor_that_raises_is_an_error_of_the_program() -> None:
    error = _failed_constructor(ValueError("negative"))
    assert error.actor_init_failed
    assert not is_lost_process(error)
    assert not is_lost_process(_task_error(error))
    assert not is_lost_process(pickle.loads(pickle.dumps(error)))


def test_a_constructor_that_raises_because_of_a_loss_is_a_loss() -> None:
    for loss in (ray_exceptions.NodeDiedError("node2"), ray_exceptions.ActorDiedError()):
        assert is_lost_process(_failed_constructor(loss))
        assert is_lost_process(_task_error(_failed_constructor(loss)))


def test_an_actor_whose_constructor_raised_is_not_counted_as_dead(monkeypatch) -> None:
    errors = {"a": _failed_constructor(ValueError("x")), "b": ray_exceptions.ActorDiedError()}

    def get(ping):
        raise errors[ping]

    monkeypatch.setattr(lost_process.ray, "wait", lambda pings, **_: (pings, []))
    monkeypatch.setattr(lost_process.ray, "get", get)
    actors = [
        SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda name=name: name))
        for name in errors
    ]
    assert lost_process.dead_actors(actors) == [
        "The actor died unexpectedly before finishing this task."
    ]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (_failed_constructor(ValueError("x")), ray_exceptions.ActorDiedError),
        (ray_exceptions.ActorDiedError(), LostProcessError),
    ],
)
def test_the_watch_raises_what_a_constructor_raised_as_it_is(monkeypatch, error, raised) -> None:
    def get(_ping):
        raise error

    monkeypatch.setattr(loss_watch.ray, "wait", lambda pings, **_: (pings, []))
    monkeypatch.setattr(loss_watch.ray, "get", get)
    ready = SimpleNamespace(remote=lambda: "ping")
    actor = type("Actor", (), {"__ray_ready__": ready})()
    watch = loss_watch.LossWatch(lambda: [actor])
    watch._loss = watch._look()
    with pytest.raises(raised, match="died") as caught:
        watch._raise_loss(0, None)
    assert is_lost_process(caught.value) == (raised is LostProcessError)


def test_a_broken_collective_is_a_loss_when_a_rank_is_gone(monkeypatch) -> None:
    asked = []

    def dead_actors(actors):
        asked.extend(actors)
        return ["The actor died: killed."] if "rank 1" in asked else []

    monkeypatch.setattr(lost_process, "dead_actors", dead_actors)
    error = _task_error(RuntimeError("Connection closed by peer"))
    trainer = SimpleNamespace(
        actor_rollout_wg=SimpleNamespace(workers=["rank 0", "rank 1"]),
        llm_server_manager=SimpleNamespace(server_handles=["server"]),
    )
    assert loss_behind(error, trainer) == "1 of 2 ranks and 1 servers are gone"
    assert asked == ["rank 0", "rank 1", "server"]
    asked.clear()
    trainer.actor_rollout_wg.workers.pop()
    assert loss_behind(error, trainer) == ""
    assert loss_behind(error, None) == ""


def test_a_session_without_its_server_ends_the_run_as_a_loss() -> None:
    lost = fatal_error("Session 0 of group a", "lost_process: The actor died.")
    assert isinstance(lost, LostProcessError) and is_lost_process(lost)
    assert isinstance(fatal_error("Session 0", "KeyError: 'x'"), FailureRateError)
