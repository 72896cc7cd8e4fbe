"""The rim: the only room that imports verl, Ray, Megatron and SGLang.

launch.py       from a checked configuration to a finished run
plugin.py       what verl imports in every process; preflight.py checks that it did
agent_loop.py   hops 3-6 on verl's agent loop; env_workers.py holds what a process keeps
trainer.py      hops 7-9 on verl's trainers; batch_credit.py is its verl-free half
checkpoints.py  which checkpoints are whole; stop.py: stopping on a signal; progress.py: metrics
compat.py       every private name of verl that is used, once
cpu/            the same stack on a machine without a GPU
"""
