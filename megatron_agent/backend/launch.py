"""From a checked configuration to a finished run.

The trainer runs in this process, not in a Ray actor as with ``verl.trainer.main_ppo``: one import
of verl less, signals arrive where the loop is, and an error ends the command that the user typed.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from megatron_agent.backend.checkpoints import CheckpointKeeper
from megatron_agent.backend.cpu.environment import set_cpu_environment
from megatron_agent.backend.cpu.prefork.launch import (
    PreforkServer,
    prefork_server,
    wait_for_server,
)
from megatron_agent.backend.cpu.prefork.protocol import PYTHON_VARIABLE, SOCKET_VARIABLE
from megatron_agent.backend.environment import set_library_defaults
from megatron_agent.backend.names import TRAINER_PREFIX
from megatron_agent.backend.preflight import PLUGIN
from megatron_agent.backend.run_ledger import check_before_resume
from megatron_agent.backend.stop import StopRequested, StopSwitch
from megatron_agent.config import split_config
from megatron_agent.credit import credit_names, credit_needs
from megatron_agent.run_folder import current_attempt

logger = logging.getLogger(__name__)

RAY_START_ATTEMPTS = 3

AGAIN = "%s; start the same command again to go on."

JOIN_KEYS = ("address", "namespace", "runtime_env", "log_to_driver", "logging_level")
"""What ``ray.init`` takes when it joins a cluster; the others say what to start, and how."""


def run(config: DictConfig, run_dir: Path) -> int:
    """Train.

    Args:
        config: the whole configuration, composed and checked (``megatron_agent.config``).
        run_dir: folder of the run; exists.

    Returns:
        Exit code: 0 when all steps are done; stopped on request, that of ``StopSwitch``, also
        where that came before the first step; 86 when a process of the run was lost, and starting
        again goes on.

    Raises:
        ConfigError: the checkpoint to start from cannot be.
        HookError: the plugin is not registered everywhere, or verl is another version.
        LedgerError: the run's folder tells of another history than its checkpoints.
        FailureRateError, CreditError: the run could not go on.
    """
    try:
        return _run(config, run_dir)
    except StopRequested as stop:
        logger.warning(AGAIN, stop)
        return StopSwitch.exit_code()
    finally:
        StopSwitch.release()


def _run(config: DictConfig, run_dir: Path) -> int:
    set_environment(config, run_dir)
    config, _ = split_config(config)
    trainer_name = prepare_for_verl(config)
    # Asked again by the trainer; here a mistake costs no start-up.
    trainer = config.trainer
    keeper = CheckpointKeeper.from_config(config)
    chosen = keeper.choose(trainer.resume_mode, trainer.resume_from_path)
    is_own = chosen is not None and chosen.parent == keeper.root
    check_before_resume(
        run_dir, keeper.step_of(chosen), must_tell=is_own and current_attempt(run_dir) > 1
    )
    if int(trainer.save_freq) > 0:
        keeper.check_room()
    StopSwitch.leave_if_requested()
    with ExitStack() as stack:
        server = None
        # One that stands already serves this run too. On a cluster that is there before the run
        # each node has a server of its own, or none.
        stands = PYTHON_VARIABLE in os.environ or joins_cluster(config)
        if config.cluster.get("prefork", False) and not stands:
            # Started first: its imports take as long as the driver's own.
            server = stack.enter_context(prefork_server(run_dir / "logs" / "prefork.log"))
        stack.callback(_stop_ray)
        import_ahead(config, trainer_name)
        start_ray(config, server)
        StopSwitch.install()
        StopSwitch.leave_if_requested()
        return _train(config, trainer_name)


def set_environment(config: DictConfig, run_dir: Path) -> None:
    """Variables that every process of the run inherits. Must come before verl is imported."""
    device = str(config.trainer.device)
    os.environ["VERL_USE_EXTERNAL_MODULES"] = PLUGIN
    os.environ["TENSORBOARD_DIR"] = str((run_dir / "tensorboard").absolute())
    os.environ["TRANSFER_QUEUE_ENABLE"] = "1"
    set_library_defaults()
    # A worker of the driver's own code must find it, installed or not.
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if device == "cpu":
        set_cpu_environment()


def prepare_for_verl(config: DictConfig) -> str:
    """Put in what verl needs and users do not write.

    Returns:
        The registered trainer's name.
    """
    with open_dict(config):
        mode = str(config.trainer.v1.trainer_mode)
        config.transfer_queue.enable = True
        config.trainer.use_v1 = True
        # The agent loop knows the rows and not the method: verl's field for it names our estimator.
        method = str(config.algorithm.adv_estimator)
        config.algorithm.needs_anchor_text = (
            method in credit_names() and "anchor_text" in credit_needs(method)
        )
        # Our progress line and metrics.jsonl take the place of verl's console dump.
        config.trainer.logger = [name for name in config.trainer.logger if name != "console"]
        # One rule for what is kept, ours: verl's own would delete inside folders marked complete.
        config.trainer.max_actor_ckpt_to_keep = config.trainer.max_critic_ckpt_to_keep = None
        if mode.endswith("separate_async") and str(config.trainer.device) == "cpu":
            # verl's engines that move weights between processes need a device; this one does not.
            config.actor_rollout_ref.rollout.checkpoint_engine.backend = "gloo"
            config.actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module = (
                "megatron_agent.backend.cpu.checkpoint_engine"
            )
        config.run.dir = str(Path(str(config.run.dir)).absolute())
        config.trainer.default_local_dir = str(
            Path(str(config.trainer.default_local_dir)).absolute()
        )
    return mode if mode.startswith(TRAINER_PREFIX) else TRAINER_PREFIX + mode


def joins_cluster(config: DictConfig) -> bool:
    """Whether Ray is there before the run: on Slurm, or by ``ray_kwargs.ray_init.address``."""
    address = os.environ.get("RAY_ADDRESS") or config.ray_kwargs.ray_init.get("address", None)
    return address not in (None, "", "local")


def import_ahead(config: DictConfig, trainer_name: str) -> None:
    """Import all that this process needs, before it waits for a prefork server or for Ray: a
    server's imports take longer than these, and something missing is told before anything runs.

    Raises:
        HookError: the plugin is not whole in this process.
    """
    from megatron_agent.backend.preflight import check_registration, registration_problems

    check_registration(registration_problems(str(config.trainer.device), trainer_name), "driver")
    from verl.workers.rollout.replica import get_rollout_replica_class

    use_cpu_engine = os.environ.get("SGLANG_USE_CPU_ENGINE")
    get_rollout_replica_class(str(config.actor_rollout_ref.rollout.name))
    if use_cpu_engine is not None:  # verl's loader takes it away
        os.environ["SGLANG_USE_CPU_ENGINE"] = use_cpu_engine


def start_ray(config: DictConfig, server: PreforkServer | None = None) -> None:
    """Start Ray as verl's own entry point does, or join the cluster that ``RAY_ADDRESS`` names.

    Args:
        config: reads ``ray_kwargs.ray_init``.
        server: fork Ray's workers from this server instead of starting a Python for each.
    """
    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    if ray.is_initialized():
        return
    init_kwargs: dict[str, Any] = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    if joins_cluster(config):
        init_kwargs = {name: init_kwargs[name] for name in init_kwargs if name in JOIN_KEYS}
    runtime_env = get_ppo_ray_runtime_env(config)
    own = init_kwargs.pop("runtime_env", None) or {}
    inherited = (
        "VERL_USE_EXTERNAL_MODULES",
        "VERL_PLATFORM",
        "SGLANG_USE_CPU_ENGINE",
        "TRANSFER_QUEUE_ENABLE",
        "OMP_NUM_THREADS",
        "GLOO_SOCKET_IFNAME",
        "TORCHDYNAMO_DISABLE",
        "PYTHONPATH",
        "HF_HUB_OFFLINE",
    )
    env_vars = {name: os.environ[name] for name in inherited if name in os.environ}
    runtime_env["env_vars"] = {
        **runtime_env.get("env_vars", {}),
        **env_vars,
        **own.get("env_vars", {}),
    }
    if server is not None:
        runtime_env["py_executable"] = str(server.python)
        runtime_env["env_vars"].update(server.environment)
        server.wait_ready()
    elif config.cluster.get("prefork", False) and PYTHON_VARIABLE in os.environ:
        runtime_env["py_executable"] = os.environ[PYTHON_VARIABLE]
        wait_for_server(Path(os.environ[SOCKET_VARIABLE]))
        for name in (PYTHON_VARIABLE, SOCKET_VARIABLE):
            runtime_env["env_vars"][name] = os.environ[name]
    init_kwargs.setdefault("log_to_driver", False)
    init_kwargs.setdefault("logging_level", logging.WARNING)
    init_kwargs["runtime_env"] = {**own, **runtime_env}
    for attempt in range(1, RAY_START_ATTEMPTS + 1):
        try:
            ray.init(**init_kwargs)
            return
        except Exception as error:
            # Ray gives its own daemons 30 s, which a busy machine may miss; the number is fixed.
            if "timed out during startup" not in str(error) or attempt == RAY_START_ATTEMPTS:
                raise
            logger.warning("Ray did not come up in 30 s; trying again (%d).", attempt)
            ray.shutdown()


def _train(config: DictConfig, trainer_name: str) -> int:
    import ray

    from megatron_agent.backend.preflight import ask_worker, check_registration

    in_worker = ask_worker(str(config.trainer.device), trainer_name)
    check_registration(ray.get(in_worker), "Ray worker")

    # It wants 8 threads and warns at every call where there are fewer cores.
    logging.getLogger("transfer_queue.utils.common").addFilter(
        lambda record: "target_num_threads" not in record.getMessage()
    )
    import transfer_queue as tq
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls
    from verl.utils.config import validate_config

    from megatron_agent.backend.loss_watch import LossWatch, watched_actors
    from megatron_agent.backend.lost_process import EXIT_RESTART, loss_behind

    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    StopSwitch.install()  # again: nobody knows what the imports above have done
    StopSwitch.leave_if_requested()
    tq.init(config.transfer_queue)
    trainer = agent_loops = None
    exit_code = 1
    with LossWatch(lambda: watched_actors(trainer, agent_loops)):
        try:
            trainer = get_trainer_cls(trainer_name)(config=config)
            trainer.init()
            StopSwitch.leave_if_requested()
            agent_loops = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(agent_loops)
            exit_code = 0
        except StopRequested as stop:
            logger.warning(AGAIN, stop)
            exit_code = StopSwitch.exit_code()
        except Exception as error:
            loss = loss_behind(error, trainer)
            if not loss:
                raise
            logger.error(
                "A process of the run was lost (%s); start the same command again to go on.",
                loss,
                exc_info=error,
            )
            exit_code = EXIT_RESTART
        finally:
            tracking = getattr(trainer, "logger", None)
            if tracking is not None:
                tracking.finish(exit_code=exit_code)
            tq.close()
    return exit_code


def _stop_ray() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
