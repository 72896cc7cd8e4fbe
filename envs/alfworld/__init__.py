"""ALFWorld: household tasks in the official text games, which users download themselves.

The `EnvSpec` is in ``spec.py``, because importing it needs the extra ``alfworld``: packages that
are compiled from source, some of them under the GPL. The lists of games, the walkthrough and the
prompts do without.
"""
