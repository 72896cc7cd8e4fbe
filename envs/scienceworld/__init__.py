"""ScienceWorld: experiments of a primary school in a simulated house, on a shared Java machine.

The `EnvSpec` is in ``spec.py``, because importing it needs the extra ``scienceworld``.
"""
