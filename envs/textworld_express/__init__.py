"""TextWorldExpress: seven kinds of small text games, on one shared Java machine a process.

The `EnvSpec` is in ``spec.py``, because importing it needs the extra ``textworld-express``.
"""
