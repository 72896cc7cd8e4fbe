"""Which checkpoints are whole.

verl writes ``global_step_<k>/`` file by file and then a tracker file, both in place. A kill in
between leaves a folder that looks like a checkpoint. Here a folder counts only with a ``COMPLETE``
file in it, which appears by an atomic rename after everything else has been written; anything
without it is removed at the next start. A ``COMPLETE`` file that cannot be read makes no checkpoint
either, but something other than a kill spoiled it: its folder stays, for a person to look at.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_agent.atomic_file import sync_to_disk
from megatron_agent.errors import ConfigError

logger = logging.getLogger(__name__)

COMPLETE = "COMPLETE"
PREFIX = "global_step_"


@dataclass(frozen=True, kw_only=True)
class CheckpointKeeper:
    """The checkpoint folder of a run.

    Args:
        root: ``trainer.default_local_dir``.
        max_to_keep: complete checkpoints to keep, newest first; None keeps all.
    """

    root: Path
    max_to_keep: int | None = None

    @classmethod
    def from_config(cls, config: Any) -> CheckpointKeeper:
        """Reads ``trainer.default_local_dir`` and ``trainer.max_ckpt_to_keep``."""
        return cls(
            root=Path(str(config.trainer.default_local_dir)).absolute(),
            max_to_keep=config.trainer.get("max_ckpt_to_keep", None),
        )

    def folder(self, step: int) -> Path:
        return self.root / f"{PREFIX}{step}"

    def steps(self) -> list[int]:
        """Steps that have a folder, complete or not, in ascending order."""
        names = [path.name for path in self.root.glob(PREFIX + "*") if path.is_dir()]
        return sorted(int(name[len(PREFIX) :]) for name in names if name[len(PREFIX) :].isdigit())

    @staticmethod
    def step_of(folder: Path | None) -> int:
        """Step of a checkpoint's folder; 0 for none.

        Example:
            >>> CheckpointKeeper.step_of(Path("runs/a/checkpoints/global_step_7"))
            7
        """
        return 0 if folder is None else int(folder.name.removeprefix(PREFIX))

    def is_complete(self, step: int) -> bool:
        return sizes_in_mark(self.folder(step)) is not None

    def complete_steps(self) -> list[int]:
        """Steps that have a complete checkpoint, in ascending order."""
        return [step for step in self.steps() if self.is_complete(step)]

    def latest_step(self) -> int:
        """Step of the newest complete checkpoint; 0 when there is none."""
        return max(self.complete_steps(), default=0)

    def latest_complete(self) -> Path | None:
        """Folder of the newest complete checkpoint, or None."""
        complete = self.complete_steps()
        return self.folder(complete[-1]) if complete else None

    def choose(self, resume_mode: str, resume_from_path: str | None) -> Path | None:
        """The checkpoint to start from; None for a fresh start. Removes half-written ones when the
        run goes on from its own.

        A run that was started from a checkpoint of another run goes on from its own once it has
        one, so that the same command resumes it too.

        Args:
            resume_mode: ``trainer.resume_mode``.
            resume_from_path: ``trainer.resume_from_path``; read by mode ``resume_path`` alone.

        Raises:
            ConfigError: a checkpoint that cannot be loaded, or a start that would leave two
                histories in one folder.
        """
        own = self.latest_complete()
        if resume_mode == "disable":
            if own is not None:
                raise ConfigError(
                    "trainer.resume_mode",
                    f"must be auto in a folder that holds checkpoints ({own.name})",
                    resume_mode,
                    "Start afresh in another folder (run.name=...), or remove the checkpoints.",
                )
            return None
        chosen, named = own, None
        if resume_mode == "resume_path":
            key, name = "trainer.resume_from_path", Path(resume_from_path or "").name
            if not name.removeprefix(PREFIX).isdigit() or not name.startswith(PREFIX):
                rule = f"must be a folder {PREFIX}<k> when trainer.resume_mode=resume_path"
                raise ConfigError(key, rule, resume_from_path, "Name one, or use resume_mode=auto.")
            named = Path(str(resume_from_path)).absolute()
            if own is None or named.parent == self.root:
                chosen = named
            else:
                logger.warning("Going on from %s, not from %s again.", own, named)
        if chosen is not None and chosen == named:
            self.check_loadable(chosen)
        elif chosen is not None and (damage := damage_of(chosen)) is not None:
            rule = f"must hold {chosen.name}/{damage.name} with {damage.num_bytes} bytes"
            remedy = self._way_past_damage("the same command again", named)
            raise ConfigError("trainer.default_local_dir", rule, damage.found, remedy)
        self.discard_partial()
        return chosen

    def begin(self, step: int) -> None:
        """Declare the checkpoint of ``step`` not whole, before files of it are written. A run that
        went back to an older checkpoint writes over folders of its former future.
        """
        for name in (COMPLETE, COMPLETE + ".partial"):
            (self.folder(step) / name).unlink(missing_ok=True)

    def check_room(self) -> None:
        """Refuse to begin a checkpoint that will not fit, judged by the newest complete one. Its
        older siblings stay: whatever is complete can be resumed from.

        Raises:
            ConfigError: naming both sizes.
        """
        newest = self.latest_complete()
        if newest is None:
            return
        sizes = sizes_in_mark(newest) or {}
        needed_bytes, free_bytes = sum(sizes.values()), shutil.disk_usage(self.root).free
        if free_bytes < needed_bytes:
            raise ConfigError(
                "trainer.default_local_dir",
                f"must have room for a checkpoint of {needed_bytes / 1e9:.3g} GB, as {newest.name}",
                f"{free_bytes / 1e9:.3g} GB free in {self.root}",
                "Make room, or keep fewer (trainer.max_ckpt_to_keep), and start the same command "
                f"again: it goes on from {newest.name}.",
            )

    def discard(self, step: int) -> None:
        """Remove what was written of a checkpoint that cannot be finished, to give its room back.

        A complete one stays, and so does one whose mark cannot be read.
        """
        if not (self.folder(step) / COMPLETE).is_file():
            shutil.rmtree(self.folder(step), ignore_errors=True)

    def mark_complete(self, step: int) -> None:
        """Declare the checkpoint of ``step`` whole. Every file is synced to disk before the mark
        is.
        """
        self.begin(step)  # or an old mark would be listed as one of the files
        folder = self.folder(step)
        sizes = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                sync_to_disk(path)
                sizes[str(path.relative_to(folder))] = path.stat().st_size
        partial = folder / (COMPLETE + ".partial")
        partial.write_text(json.dumps({"step": step, "bytes": sizes}, indent=1) + "\n")
        sync_to_disk(partial)
        partial.replace(folder / COMPLETE)
        sync_to_disk(folder)

    def discard_partial(self) -> None:
        """Remove folders that a killed run left half written."""
        for step in self.steps():
            if self.is_complete(step):
                continue
            folder = self.folder(step)
            if (folder / COMPLETE).is_file():
                logger.warning(
                    "%s is passed over: its %s file cannot be read. Restore that from a copy, or "
                    "remove the folder; the run writes over it when it comes to step %d.",
                    folder, COMPLETE, step,
                )  # fmt: skip
                continue
            logger.warning("Removing %s: it was never finished.", folder)
            shutil.rmtree(folder)

    def prune(self) -> None:
        """Remove all but the newest ``max_to_keep`` complete checkpoints."""
        if self.max_to_keep is None:
            return
        for step in self.complete_steps()[: -max(1, self.max_to_keep)]:
            # The mark goes first: a kill half way through leaves a folder that says it is not
            # whole.
            (self.folder(step) / COMPLETE).unlink()
            shutil.rmtree(self.folder(step))

    def check_loadable(self, path: str | os.PathLike[str]) -> None:
        """Refuse a checkpoint that is missing, incomplete, or changed in size since it was written.

        Raises:
            ConfigError: naming the folder and what is wrong with it.
        """
        folder = Path(path)
        mark = folder / COMPLETE
        key, is_own = "trainer.resume_from_path", folder.parent == self.root
        remedy = "Choose another checkpoint of that run."
        if is_own:
            remedy = "Use trainer.resume_mode=auto, which takes the newest complete one."
        if not mark.is_file():
            raise ConfigError(key, f"must be a folder with a {COMPLETE} file", str(folder), remedy)
        sizes = sizes_in_mark(folder)
        if sizes is None:
            rule = f"must hold a {COMPLETE} file that can be read"
            raise ConfigError(key, rule, str(folder), remedy)
        step, newest = folder.name.removeprefix(PREFIX), self.latest_complete()
        if is_own and newest is not None and newest.name != folder.name:
            raise ConfigError(
                key,
                f"must be the newest checkpoint of its run ({newest.name})",
                str(folder),
                f"Going back to step {step} would leave two histories in one folder: start a run "
                "in another folder from it, or remove the later checkpoints.",
            )
        if (damage := damage_of(folder)) is not None:
            if is_own:
                remedy = self._way_past_damage("with trainer.resume_mode=auto", None)
            rule = f"must hold {damage.name} with {damage.num_bytes} bytes"
            raise ConfigError(key, rule, damage.found, remedy)

    def _way_past_damage(self, how: str, start: Path | None) -> str:
        """The remedy for a damaged newest checkpoint of this run, which would otherwise be chosen
        again.

        Args:
            how: how to start once the damaged ones are gone.
            start: checkpoint of another run that this one began from.
        """
        damaged = []
        for step in reversed(self.complete_steps()):
            if damage_of(self.folder(step)) is None:
                start = self.folder(step)
                break
            damaged.append(self.folder(step).name)
        then = "no earlier one is left, so the run begins anew"
        if start is not None:
            then = f"it goes on from {start.name if start.parent == self.root else start}"
        names, them = " and ".join(damaged), "it" if len(damaged) == 1 else "them"
        return f"Remove {names}, or move {them} out of {self.root}, and start {how}: {then}."


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A file of a checkpoint that has not the size that the mark says."""

    name: str
    num_bytes: int
    found: str
    """The checkpoint's folder and the size that the file has there."""


def damage_of(folder: Path) -> Damage | None:
    """The first file that changed in size since the checkpoint was written; None for a whole one.

    Example:
        >>> damage_of(Path("runs/none/checkpoints/global_step_7"))
    """
    for name, num_bytes in (sizes_in_mark(folder) or {}).items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != num_bytes:
            return Damage(name=name, num_bytes=num_bytes, found=f"{folder} ({found} bytes)")
    return None


def sizes_in_mark(folder: Path) -> dict[str, int] | None:
    """Bytes of each file of a checkpoint, as its mark says; None without a mark that can be read.

    Example:
        >>> sizes_in_mark(Path("runs/none/checkpoints/global_step_7"))
    """
    mark = folder / COMPLETE
    if not mark.is_file():
        return None
    try:
        sizes = json.loads(mark.read_bytes())["bytes"]
        return {str(name): int(num_bytes) for name, num_bytes in sizes.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
