"""Hops 2 to 6: groups of environments, episodes, and the rows they become. No verl, Ray or torch.

In the order of the data: `env_pool` (with `group_starts`, `worker_count`, `pool_stats`, and below
it `worker_process`, `wire`, `env_worker`), `memory`, `parts`, `episode`, `samples`; beside these
`failures` and `journal`.
"""
