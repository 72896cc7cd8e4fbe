"""The run that is examined: its configuration, and what its keys point at, read once."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from megatron_agent.config import ConfigProblemsError, Findings
from megatron_agent.config.composition import compose_config
from megatron_agent.config.fields import read_settings
from megatron_agent.config.overrides import DEFAULT_ROOT
from megatron_agent.config.rules.model_folder import MODEL_KEY
from megatron_agent.config.settings import EnvSettings
from megatron_agent.config.validation import check_values
from megatron_agent.config.values import ConfigValues
from megatron_agent.doctor.findings import DoesNotApply
from megatron_agent.errors import ConfigError, HookError


@dataclass
class RunCase:
    """What is to be examined. Nothing here raises for what is wrong with it.

    Where there is no configuration at all, ``values`` is empty: its getters answer None, and
    checks have nothing to say about None.
    """

    values: ConfigValues
    config_findings: Findings = field(default_factory=Findings)
    """What the rules of `megatron_agent.config` say."""
    config: DictConfig | None = None
    stack_failure: str = ""
    """Why the configuration could not even be composed, when the fault is not the user's."""

    @classmethod
    def from_overrides(
        cls, overrides: Sequence[str] = (), *, config_name: str = DEFAULT_ROOT
    ) -> RunCase:
        """A command line, composed and checked.

        Args:
            overrides: as for ``megatron-agent train``.
            config_name: root below ``configs/``.

        Example:
            >>> case = RunCase.from_overrides(["algorithm.gamma=-1"])  # doctest: +SKIP
            >>> case.config_findings.problems[0].key  # doctest: +SKIP
            'algorithm.gamma'
        """
        findings = Findings()
        empty = ConfigValues({})
        try:
            config = compose_config(overrides, config_name=config_name, findings=findings)
            values = ConfigValues.from_config(config)
            check_values(values, findings)
        except ConfigProblemsError as error:
            findings.problems[:] = error.problems
            return cls(empty, findings)
        except ConfigError as error:
            findings.problems.append(error)
            return cls(empty, findings)
        except HookError as error:
            return cls(empty, findings, stack_failure=str(error))
        return cls(values, findings, config)

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``; empty when not known."""
        return self.values.text("trainer.device") or ""

    @functools.cached_property
    def env_settings(self) -> EnvSettings | None:
        """The section ``env``, whatever is wrong elsewhere; None when it has faults itself."""
        return read_settings(EnvSettings, self.values.get("env"), "env", Findings())

    @property
    def run_dir(self) -> Path | None:
        """Where the run would write."""
        folder = self.values.text("run.dir")
        return Path(folder).expanduser() if folder else None

    @functools.cached_property
    def model_folder(self) -> Path | None:
        """The folder of the model; None when there is none (the configuration's check says so)."""
        text = self.values.text(MODEL_KEY)
        folder = Path(text).expanduser() if text else None
        return folder if folder is not None and folder.is_dir() else None

    @functools.cached_property
    def model_config(self) -> Mapping[str, Any]:
        """``config.json`` of the model; empty when it is missing or unreadable."""
        return self.model_json("config.json")

    def existing_model_folder(self) -> Path:
        """The folder of the model.

        Raises:
            DoesNotApply: there is none.
        """
        if self.model_folder is None:
            raise DoesNotApply("no model folder")
        return self.model_folder

    def loaded_tokenizer(self) -> Any:
        """The model's tokenizer.

        Raises:
            DoesNotApply: there is none that loads.
        """
        if self.tokenizer is None or isinstance(self.tokenizer, Exception):
            raise DoesNotApply("no tokenizer")
        return self.tokenizer

    def model_json(self, name: str) -> Mapping[str, Any]:
        """A JSON object in the model's folder; empty when it is missing or unreadable."""
        if self.model_folder is None:
            return {}
        try:
            content = json.loads((self.model_folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, or the exception that loading it raised; None without a folder."""
        if self.model_folder is None:
            return None
        # Takes a second or two, and is not installed everywhere that configurations are written.
        try:
            from transformers import AutoTokenizer, PretrainedConfig
        except ImportError as error:
            return error
        load = functools.partial(
            AutoTokenizer.from_pretrained, str(self.model_folder), local_files_only=True
        )
        try:
            return load()
        except Exception as error:  # any: a folder of strangers may hold anything
            # It reads config.json too, whose faults are findings of the model and hide nothing.
            with contextlib.suppress(Exception):
                return load(config=PretrainedConfig())
            return error

    @functools.cached_property
    def config_failure(self) -> Exception | None:
        """Why transformers refuses ``config.json``; None where it does not, or there is none, or
        reading it would run code.
        """
        if not self.model_config or "auto_map" in self.model_config:
            return None
        try:
            from transformers import AutoConfig

            AutoConfig.from_pretrained(str(self.model_folder), local_files_only=True)
        except ImportError:
            return None
        except Exception as error:  # as above
            return error
        return None
