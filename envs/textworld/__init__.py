"""TextWorld: generated text games, which users make with ``python -m envs.textworld.generate``.

The `EnvSpec` is in ``spec.py``, because importing it needs the extra ``textworld``: packages that
are compiled from source, one of them under the GPL. The lists of games and the prompts do without.
"""
