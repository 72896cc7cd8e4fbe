"""Plan a run before it queues: bytes, seconds and layouts from sizes alone.

Nothing here loads weights, looks at devices or imports verl, Ray or torch. In reading order:

shapes.py layout.py params.py  the model, how it is cut, exact parameter counts
records.py                     what a plan is made for
activations.py ownership.py memory.py
                               bytes on a GPU, by phase
compute.py training_time.py generation_time.py
                               seconds of each phase, from a roofline with stated efficiencies
plan.py search.py              one answer; the best answers
read_job.py overrides.py report.py command.py
                               from a configuration, to tables and JSON
"""
