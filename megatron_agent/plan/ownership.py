"""What the trainer owns on a rank of one pipeline stage, and what of it may leave the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_agent.plan.params import RankParams, count_adapters, count_rank
from megatron_agent.plan.records import Job, Training

BF16, MASTER_BYTES = 2, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """Bytes of everything that outlives a micro-batch."""

    stage: int
    weights: float
    gradients: float
    optimizer: float
    reference: float
    critic: float
    training: Training

    @classmethod
    def of(cls, job: Job, stage: int) -> StageMemory:
        """What a rank of ``stage`` owns (0 has the embedding, the last one the output layer)."""
        training, layout = job.training, job.layout
        params = count_rank(job.shape, layout, stage)
        trained = params
        extra = 0
        if training.lora_rank:
            extra = count_adapters(job.shape, layout, training.lora_rank)
            trained = RankParams(dense=extra, expert=0)
        optimizer = training.optimizer_bytes * (
            trained.dense / layout.optimizer_shards
            + trained.expert / layout.expert_optimizer_shards
        )
        weights = float(BF16 * (params.total + extra))
        gradients = float(training.grad_bytes * trained.total)
        own = weights + gradients + optimizer
        return cls(
            stage=stage,
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            # With adapters the reference is the model without them.
            reference=weights if training.has_reference and not training.lora_rank else 0.0,
            critic=own if training.has_critic else 0.0,
            training=training,
        )

    @property
    def resident(self) -> dict[str, float]:
        """Never leaves the GPU; of a critic all or nothing, whichever is offloaded less."""
        training = self.training
        parts: dict[str, float] = {}
        if not training.param_offload:
            parts |= {"weights": self.weights, "gradients": self.gradients}
        if not training.reference_offload:
            parts["reference weights"] = self.reference
        if not training.optimizer_offload:
            parts["optimizer"] = self.optimizer
        if not (training.param_offload and training.optimizer_offload):
            parts["critic"] = self.critic
        return {name: size for name, size in parts.items() if size}

    @property
    def at_server_start(self) -> float:
        """Resident when the servers measure free memory: Adam's moments do not exist yet."""
        resident = self.resident
        moments = 1 - MASTER_BYTES / self.training.optimizer_bytes
        return sum(resident.values()) - resident.get("optimizer", 0.0) * moments

    @property
    def active(self) -> dict[str, float]:
        """On the GPU in every phase of the trainer."""
        return {**self.resident, "weights": self.weights}
