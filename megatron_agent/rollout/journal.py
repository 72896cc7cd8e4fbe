"""Episodes on disk, one JSON object a line, for people and reports to read.

A line is written with one call, so several processes may append to one file, and a process that is
killed leaves at most one broken line, which readers skip.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from megatron_agent.rollout.images import picture_digest
from megatron_agent.types import Episode, Turn

_log = logging.getLogger(__name__)


def episode_record(episode: Episode, *, include_token_ids: bool = False) -> dict[str, Any]:
    """``episode`` as plain data for JSON; of pictures only digests.

    Args:
        include_token_ids: keep prompt ids, response ids and log-probs too: exact, and many times
            as large.
    """
    return {
        "uid": episode.uid,
        "session_id": episode.session_id,
        "env": episode.env,
        "task_id": episode.task_id,
        "seed": episode.seed,
        "split": episode.split,
        "success": episode.success,
        "failure": episode.failure,
        "reset_s": episode.reset_s,
        "num_restores": episode.num_restores,
        "episode_return": episode.episode_return,
        "num_steps": episode.num_steps,
        "turns": [_turn_record(turn, include_token_ids) for turn in episode.turns_T],
    }


class EpisodeJournal:
    """Appends episodes to a JSONL file, whole lines only.

    Example::

        with EpisodeJournal("runs/demo/episodes.jsonl") as journal:
            journal.append(episode, global_step=3)
    """

    def __init__(self, path: str | os.PathLike[str], *, include_token_ids: bool = False) -> None:
        self.path = Path(path)
        self._include_token_ids = include_token_ids
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._descriptor).st_size
        # A writer killed in the middle of a line: close that line, so that ours starts a new one.
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def append(self, episode: Episode, **extra: Any) -> None:
        """Append one episode; ``extra`` fields (``global_step``, say) come first in the line.

        Raises:
            ValueError: the journal is closed.
        """
        if self._descriptor < 0:
            raise ValueError(f"{self.path}: the journal is closed.")
        record = {**extra, **episode_record(episode, include_token_ids=self._include_token_ids)}
        line = json.dumps(record, ensure_ascii=True, default=repr) + "\n"
        data = line.encode("ascii")
        while data:  # the kernel takes less than all only when the disk is full or a signal came
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> EpisodeJournal:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_journal(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Records of a journal in order; a line that a killed writer left unfinished is logged and
    skipped.
    """
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)
            except ValueError:
                _log.warning("%s, line %d: not JSON, skipped (unfinished write).", path, number)


def _turn_record(turn: Turn, include_token_ids: bool) -> dict[str, Any]:
    generation = turn.generation
    record = {
        name.name: getattr(turn, name.name)
        for name in dataclasses.fields(turn)
        if name.name not in ("generation", "prompt_ids_L", "info", "images")
    }
    record |= {
        "response": generation.text,
        "stop_reason": generation.stop_reason,
        "num_prompt_tokens": len(turn.prompt_ids_L),
        "num_response_tokens": len(generation.token_ids_L),
        "weight_version_min": generation.weight_version_min,
        "weight_version_max": generation.weight_version_max,
        "info": dict(turn.info),
    }
    if turn.images:
        record["images"] = [picture_digest(picture) for picture in turn.images]
    if include_token_ids:
        record |= {
            "prompt_ids": list(turn.prompt_ids_L),
            "response_ids": list(generation.token_ids_L),
            "log_probs": None if generation.log_probs_L is None else list(generation.log_probs_L),
        }
    return record
