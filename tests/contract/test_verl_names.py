"""Every private name of verl that we touch exists in the installed version."""

from __future__ import annotations

import importlib.util
import inspect

import pytest

from megatron_agent.backend.compat import PRIVATE_NAMES, VERL_VERSION, PrivateName
from megatron_agent.errors import HookError

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "name", PRIVATE_NAMES, ids=lambda name: f"{name.module.rpartition('.')[2]}.{name.attribute}"
)
def test_a_listed_name_resolves(name: PrivateName) -> None:
    assert name.resolve() is not None


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._no_such_method"),
        ("verl.trainer.ppo.v1.trainer_base", "NoSuchTrainer._update_actor"),
        ("verl.no_such_module", "anything"),
    ],
)
def test_a_name_that_verl_lacks_is_named_with_its_user_and_the_version(
    module: str, attribute: str
) -> None:
    with pytest.raises(HookError) as raised:
        PrivateName(module=module, attribute=attribute, used_by="trainer").resolve()
    assert str(raised.value) == (
        f"verl has no {module}.{attribute}, which trainer needs. This package is tested with verl "
        f"{VERL_VERSION}: install that version."
    )
    assert raised.value.__cause__ is not None


def test_the_installed_verl_is_the_tested_one() -> None:
    import verl

    assert verl.__version__ == VERL_VERSION


def test_no_name_is_listed_twice() -> None:
    listed = [(name.module, name.attribute) for name in PRIVATE_NAMES]
    assert len(set(listed)) == len(listed)


def test_what_our_trainers_override_or_wrap_is_listed() -> None:
    """A private method of ours that has a namesake in verl replaces it: it belongs in the list."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from megatron_agent.backend.trainer import AgentTrainerMixin

    listed = {name.attribute for name in PRIVATE_NAMES}
    overridden = {
        f"PPOTrainer.{name}"
        for name in vars(AgentTrainerMixin)
        if name.startswith("_") and not name.startswith("__") and hasattr(PPOTrainer, name)
    }
    assert overridden <= listed


def test_asynchronous_checkpoints_cannot_be_written_by_the_installed_versions() -> None:
    """Why ``checkpoint.async_save`` is refused: verl takes the queue of writes from a module that
    this Megatron no longer has, and no worker of the V1 trainers ever finishes what is in it.
    """
    from verl.utils.checkpoint import megatron_checkpoint_manager
    from verl.workers import engine_workers

    source = inspect.getsource(megatron_checkpoint_manager)
    queue = "megatron.core.dist_checkpointing.strategies.base"
    assert f"from {queue} import async_calls" in source
    assert importlib.util.find_spec(queue) is None
    assert "async_calls_finalize_fn_exec" not in inspect.getsource(engine_workers)
