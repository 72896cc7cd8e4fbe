"""From a configuration to a job in Slurm's queue. What runs inside the job is ``slurm/lib/``.

job_settings.py  the variables (``MA_...``) that the batch shell reads, from ``cluster.slurm``
script.py        the sbatch file of a run, as text
submit.py        hand it to sbatch, and say in plain words why it was refused
launch.py        ``megatron-agent launch``: check, render, print, submit

Nothing here imports verl, Ray or torch: a login node has neither GPUs nor patience.
"""
