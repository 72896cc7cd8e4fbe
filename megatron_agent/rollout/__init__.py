"""Hops 2 to 6: groups of environments, episodes, and the rows they become. No verl, Ray or torch.

In the order of the data: `env_pool` (with `worker_process`, `env_worker`, `wire`, `pool_stats`),
`memory`, `episode`, `samples`; beside it `failures` and `journal`.
"""
