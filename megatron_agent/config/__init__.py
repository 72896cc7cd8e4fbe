"""Configuration of a run: compose (Hydra on verl's defaults), check (fast, all problems at once),
split for verl.

Read in this order: `composition`, `validation` (and ``rules/``), `settings`, `split`.
"""

from megatron_agent.config.composition import as_plain, compose_config
from megatron_agent.config.findings import ConfigProblemsError, Findings
from megatron_agent.config.overrides import DEFAULT_ROOT, root_names
from megatron_agent.config.settings import AgentSettings
from megatron_agent.config.split import split_config
from megatron_agent.config.validation import check_config, validate_config

__all__ = [
    "DEFAULT_ROOT",
    "AgentSettings",
    "ConfigProblemsError",
    "Findings",
    "as_plain",
    "check_config",
    "compose_config",
    "root_names",
    "split_config",
    "validate_config",
]
