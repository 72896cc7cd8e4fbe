"""One run of the whole stack that changes its credit method at every step.

    python credit_methods_job.py METHOD,METHOD,... HYDRA_OVERRIDE...

Bringing the stack up takes most of a short run, and the method is the trainer's alone; so all of
them share one run. The run goes as many steps as there are methods, with a critic, whose values
`gae` needs.
"""

from __future__ import annotations

import sys


def main(methods: list[str], overrides: list[str]) -> int:
    from megatron_agent.backend import launch

    run = launch._train

    def run_switching(config: object, trainer_name: str) -> int:
        from megatron_agent.backend.trainer import AgentTrainerMixin

        begin = AgentTrainerMixin.on_step_begin

        def on_step_begin(self: AgentTrainerMixin) -> None:
            begin(self)
            self.credit_method = methods[self.global_steps - 1]

        AgentTrainerMixin.on_step_begin = on_step_begin
        return run(config, trainer_name)

    launch._train = run_switching
    from megatron_agent.train import train

    return train([*overrides, f"trainer.total_training_steps={len(methods)}"], argv=sys.argv)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1].split(","), sys.argv[2:]))
