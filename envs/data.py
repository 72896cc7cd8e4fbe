"""Data that users bring: where an environment looks for it, and what it says when it is not there.

The project ships no data. An environment that needs some has an option ``data_dir`` (default
``""``), and looks in this order:

1. that option (``env.options.data_dir=...``, or ``--data`` of the ``env`` commands);
2. the variables its users already set, such as ``ALFWORLD_DATA``;
3. ``$MEGATRON_AGENT_DATA/<subfolder>``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from envs.options import Option

DATA_VARIABLE = "MEGATRON_AGENT_DATA"

DATA_OPTION = Option(
    default="",
    rule="a folder, or empty to look where the environment's page says",
    allows=lambda value: isinstance(value, str),
)
"""The option ``data_dir``; a folder that is not there is reported when it is needed."""


class EnvDataError(ValueError):
    """The data of an environment are not there, or not complete; the message says how to get
    them. A ``ValueError``, so that checks of options report it early.
    """


def find_data(
    env_name: str,
    given: str,
    *,
    needs: Sequence[str],
    command: str,
    variables: Sequence[str] = (),
    subfolder: str = "",
) -> Path:
    """The first of the places above that holds all of ``needs``.

    Args:
        env_name: for messages.
        given: value of the option ``data_dir``. When not empty, no other place is tried.
        needs: files or folders that must be there, relative; a glob pattern such as ``*.jsonl`` is
            met by one match.
        command: what a person runs to get the data.
        variables: environment variables that hold such a folder.
        subfolder: below ``$MEGATRON_AGENT_DATA``; ``env_name`` when empty.

    Raises:
        EnvDataError: no place holds them; the message names the places, what each lacks, and the
            command.
    """
    places = _places(given, variables, subfolder or env_name)
    lacking = []
    for origin, folder in places:
        missing = next((need for need in needs if not _holds(folder, need)), None)
        if missing is None:
            return folder
        lacking.append(f"{folder} ({origin}) has no {missing}")
    looked = "; ".join(lacking) or f"no folder was named (option data_dir, ${DATA_VARIABLE})"
    raise EnvDataError(
        f"environment {env_name!r} must have its data, but {looked}. Get them with: {command}; "
        f"then name their folder with env.options.data_dir, or --data of the env commands."
    )


def _places(given: str, variables: Sequence[str], subfolder: str) -> list[tuple[str, Path]]:
    if given:
        return [("option data_dir", Path(given).expanduser())]
    places = [
        (f"${variable}", Path(os.environ[variable]).expanduser())
        for variable in variables
        if os.environ.get(variable)
    ]
    if os.environ.get(DATA_VARIABLE):
        folder = Path(os.environ[DATA_VARIABLE]).expanduser() / subfolder
        places.append((f"${DATA_VARIABLE}/{subfolder}", folder))
    return places


def _holds(folder: Path, need: str) -> bool:
    return folder.is_dir() and next(folder.glob(need), None) is not None
