"""Settings of a run and rows as the agent loop writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from megatron_agent.backend.batch_credit import BatchCredit, credit_batch
from megatron_agent.config import AgentSettings
from megatron_agent.config.settings import (
    AlgorithmSettings,
    EnvSettings,
    EpisodeRewardSettings,
    GigpoSettings,
    GroupSettings,
    HgpoSettings,
    OverlongPenaltySettings,
    PenaltySettings,
    RunSettings,
    TaskSettings,
)

MakeSettings = Callable[..., AgentSettings]


@pytest.fixture
def make_settings() -> MakeSettings:
    def make(
        *,
        group_size: int = 2,
        max_failure_rate: float = 1.0,
        norm_by_std: bool = True,
        row_weights: str = "token_mean",
        whiten: bool = True,
        enable_similarity: bool = False,
    ) -> AgentSettings:
        return AgentSettings(
            env=EnvSettings(
                env_name="frozenlake",
                seed=0,
                max_steps=8,
                history_length=2,
                memory="window",
                prompt_file=None,
                images=False,
                options={},
                max_failure_rate=max_failure_rate,
                num_workers=1,
                step_timeout_s=1.0,
                reset_timeout_s=1.0,
                start_timeout_s=1.0,
                worker_memory_limit=None,
                generate_timeout_s=1.0,
                rollout=GroupSettings(n=group_size, redundancy=0),
                tasks=TaskSettings(num_train=1, num_eval=1, seed=0),
            ),
            algorithm=AlgorithmSettings(
                adv_estimator="gigpo",
                gamma=0.95,
                lam=1.0,
                norm_adv_by_std_in_grpo=norm_by_std,
                whiten_advantages=whiten,
                filter_at_bound="train",
                row_weights=row_weights,
                episode_reward=EpisodeRewardSettings(normalize_by_length=False),
                overlong_penalty=OverlongPenaltySettings(coef=0.0, buffer_length=1),
                gigpo=GigpoSettings(
                    step_advantage_w=1.0,
                    episode_advantage_w=1.0,
                    mode="mean_norm",
                    enable_similarity=enable_similarity,
                    similarity_thresh=0.95,
                    similarity_measure="character",
                    similarity_keep_numbers=True,
                    similarity_max_comparisons=1_000_000,
                    episode_statistics="trajectory",
                    lonely_episode="zero",
                    repeated_states="every_visit",
                ),
                hgpo=HgpoSettings(
                    mode="mean_norm", history_length=2, length_weight_alpha=1.0, base_group=False
                ),
            ),
            invalid_action_penalty=PenaltySettings(
                enabled=False, coef=0.1, mode="separate", reach="own_step"
            ),
            run=RunSettings(name="test", dir="runs/test"),
        )

    return make


@dataclass
class Batch:
    """Rows of a training batch, built episode by episode."""

    keys: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    is_padding: list[bool] = field(default_factory=list)

    def episode(
        self,
        uid: str,
        session_id: int,
        *,
        rewards: tuple[float, ...],
        anchors: tuple[str, ...] | None = None,
        action_valid: bool = True,
        failure: str = "",
        fatal: str = "",
    ) -> Batch:
        """Add one row per reward."""
        for step_idx, reward in enumerate(rewards):
            anchor = f"{uid}-{session_id}-{step_idx}" if anchors is None else anchors[step_idx]
            self.keys.append(f"{uid}_{session_id}_{step_idx}")
            self.is_padding.append(False)
            self.rows.append(
                {
                    "anchor": "start" if step_idx == 0 else anchor,
                    "step_reward": reward,
                    "episode_return": sum(rewards),
                    "episode_length": len(rewards),
                    "step_idx": step_idx,
                    "action_valid": action_valid,
                    "success": sum(rewards) > 0,
                    "failed": bool(failure or fatal),
                    "failure": failure or fatal,
                    "fatal": fatal,
                }
            )
        return self

    def padding(self, key: str, row: dict[str, Any]) -> Batch:
        """Add one row that verl would add to fill the batch."""
        self.keys.append(key)
        self.rows.append(row)
        self.is_padding.append(True)
        return self

    def reordered(self, order: list[int]) -> Batch:
        """The same rows in another order."""
        return Batch(
            [self.keys[row] for row in order],
            [self.rows[row] for row in order],
            [self.is_padding[row] for row in order],
        )

    def credit(
        self, settings: AgentSettings, method: str = "gigpo"
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Credit of the batch: advantages and metrics."""
        credit = self.whole_credit(settings, method)
        return credit.advantage_N, credit.metrics

    def whole_credit(
        self,
        settings: AgentSettings,
        method: str = "gigpo",
        *,
        response_length_N: list[int] | None = None,
        value_N: list[float] | None = None,
        log_prob_N: np.ndarray | None = None,
        entropy_N: np.ndarray | None = None,
        removed: dict[str, list[dict[str, Any]]] | None = None,
    ) -> BatchCredit:
        """Everything that `credit_batch` returns."""
        lengths = [3] * len(self.keys) if response_length_N is None else response_length_N
        return credit_batch(
            settings,
            method=method,
            keys=self.keys,
            rows=self.rows,
            is_padding_N=np.array(self.is_padding),
            response_length_N=np.array(lengths),
            value_N=None if value_N is None else np.array(value_N),
            log_prob_N=log_prob_N,
            entropy_N=entropy_N,
            removed=removed,
        )


@pytest.fixture
def batch() -> Batch:
    """An empty batch."""
    return Batch()


@pytest.fixture
def make_batch() -> type[Batch]:
    """Makes empty batches."""
    return Batch
