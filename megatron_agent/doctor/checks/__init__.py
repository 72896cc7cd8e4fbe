"""The checks, one file per subject; `megatron_agent.doctor.registry` lists the files."""
