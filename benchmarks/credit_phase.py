"""Seconds of the advantage phase of a training step, TransferQueue traffic included.

    python benchmarks/credit_phase.py                        # 128 episodes of 24 steps
    python benchmarks/credit_phase.py --groups 64 --steps 50

Brings up Ray and TransferQueue, writes rows as the agent loop does, and runs the trainer's own
advantage phase on them in three ways that take turns: credit, and two numbers a row and field sent;
the same with one tensor a row and field sent, as to a storage that makes none itself; and through
verl's own phase, which runs where the reward has a KL term or the rollout's probabilities are
corrected. All are shown as shares of a step that takes ``--step-s`` seconds. The default, 362.8 s,
is published for GiGPO with a 1.5B policy on ALFWorld.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

FIRST, SHORT = "fetching the rows' fields, credit", "whole phase"
ROW_BY_ROW = "whole phase, rows written one by one"
THROUGH_VERL = "whole phase, through verl's own"


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--sessions", type=int, default=8, help="of a group")
    parser.add_argument("--steps", type=int, default=24, help="of an episode")
    parser.add_argument("--response-length", type=int, default=512, help="tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step-s", type=float, default=362.8)
    args = parser.parse_args()

    trainer, batch = _trainer_and_batch(args)
    seconds_of = _measure(trainer, batch, args.repeats)
    print(f"{len(batch.keys)} rows, {args.response_length} tokens a response")
    print("| part | seconds | share of the step |\n|---|---|---|")
    for part, seconds in seconds_of.items():
        print(f"| {part} | {seconds:.3f} | {seconds / args.step_s:.3%} |")
    return 0


def _trainer_and_batch(args: argparse.Namespace) -> tuple[Any, Any]:
    from megatron_agent.backend.launch import prepare_for_verl, set_environment, start_ray
    from megatron_agent.config import compose_config, split_config

    config, settings = split_config(
        compose_config([f"env.rollout.n={args.sessions}", f"data.train_batch_size={args.groups}"])
    )
    set_environment(config, Path(str(config.run.dir)))
    prepare_for_verl(config)
    start_ray(config)
    import transfer_queue as tq
    import verl.trainer.ppo.v1  # noqa: F401 - verl must be whole before our part of it

    from megatron_agent.backend.names import ESTIMATOR_NAME
    from megatron_agent.backend.run_ledger import RunLedger
    from megatron_agent.backend.trainer import AgentTrainerSync

    tq.init(config.transfer_queue)
    trainer: Any = object.__new__(AgentTrainerSync)
    trainer.config, trainer.settings, trainer.credit_method = config, settings, "gigpo"
    trainer.use_critic, trainer.parameter_sync_step, trainer.replay_buffer = False, 1, None
    trainer.ledger = RunLedger(Path(tempfile.mkdtemp()), mode="sync")
    trainer._removed_groups_of_step = {}
    config.algorithm.adv_estimator = ESTIMATOR_NAME
    return trainer, _put_rows(args)


def _put_rows(args: argparse.Namespace) -> Any:
    """Rows of finished episodes: every second one won, states shared within a group.

    Fields and tags are those of ``agent_loop_tq``, since TransferQueue's work depends on their
    number, too.
    """
    import torch
    import transfer_queue as tq
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    keys, fields = [], []
    num_tokens = args.response_length
    tokens = torch.ones(num_tokens, dtype=torch.int64)
    for group in range(args.groups):
        for session in range(args.sessions):
            won = float(session % 2)
            for step in range(args.steps):
                keys.append(f"group{group}_{session}_{step}")
                is_last = step + 1 == args.steps
                fields.append(
                    {
                        "uid": f"group{group}",
                        "prompts": tokens,
                        "responses": tokens,
                        "input_ids": torch.cat([tokens, tokens]),
                        "position_ids": torch.arange(2 * num_tokens),
                        "response_mask": tokens,
                        "loss_mask": tokens,
                        "num_turns": 2,
                        "rm_scores": torch.zeros(num_tokens).index_fill(
                            0, torch.tensor([num_tokens - 1]), won
                        ),
                        "rollout_log_probs": torch.full((num_tokens,), -0.5),
                        "old_log_probs": torch.full((num_tokens,), -0.5),
                        "extra_fields": {
                            "anchor": f"state{(session * step) % (2 * args.steps)}",
                            "step_reward": won if is_last else 0.0,
                            "episode_return": won,
                            "episode_length": args.steps,
                            "step_idx": step,
                            "action_valid": True,
                            "success": bool(won),
                            "failed": False,
                            "failure": "",
                            "fatal": "",
                        },
                    }
                )
    tag = {
        "status": "success",
        "prompt_len": num_tokens,
        "response_len": num_tokens,
        "seq_len": 2 * num_tokens,
        "global_steps": 1,
        "min_global_steps": 0,
        "max_global_steps": 0,
    }
    tags = [dict(tag) for _ in keys]
    tq.kv_batch_put(
        keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train"
    )
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags)


def _measure(trainer: Any, batch: Any, repeats: int) -> dict[str, float]:
    """Median seconds of the phase each way, taking turns, and of what all begin with."""
    from megatron_agent.backend import advantage_phase
    from megatron_agent.backend import trainer as trainer_module

    credited_s: list[float] = []

    def noting(needed: bool) -> Any:
        def needs_verls_phase(_: Any) -> bool:
            credited_s.append(time.perf_counter())
            return needed

        return needs_verls_phase

    def refuse(*_: Any) -> Any:
        raise NotImplementedError  # as another storage than SimpleStorage does

    put_tables = advantage_phase._put_tables
    ways = ((SHORT, False, put_tables), (ROW_BY_ROW, False, refuse), (THROUGH_VERL, True, refuse))
    seconds: dict[str, list[float]] = {part: [] for part in (FIRST, *(way[0] for way in ways))}
    for _ in range(repeats):
        for part, needed, put in ways:
            with (
                patch.object(trainer_module, "needs_verls_phase", noting(needed)),
                patch.object(advantage_phase, "_put_tables", put),
            ):
                started_s = time.perf_counter()
                trainer._compute_advantage(batch, {})
                seconds[part].append(time.perf_counter() - started_s)
            seconds[FIRST].append(credited_s.pop() - started_s)
    return {part: statistics.median(values) for part, values in seconds.items()}


if __name__ == "__main__":
    raise SystemExit(main())
