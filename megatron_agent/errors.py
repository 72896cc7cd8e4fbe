"""The errors of this package. Each also derives from the matching built-in, and each survives
pickling.

Ray and multiprocessing carry exceptions between processes by pickling ``args``; so every error here
takes its parts as positional arguments and keeps them.
"""

from __future__ import annotations


class MegatronAgentError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(MegatronAgentError, ValueError):
    """A configuration value that cannot work.

    Args:
        key: full dotted key as a user types it, e.g. ``algorithm.gamma``.
        rule: what must hold, e.g. ``must be in [0, 1]``.
        value: the value found.
        remedy: what to do about it, a short imperative sentence.

    Example:
        >>> str(ConfigError("algorithm.gamma", "must be in [0, 1]", -0.5, "Use 0.95."))
        'algorithm.gamma must be in [0, 1], got -0.5. Use 0.95.'
    """

    def __init__(self, key: str, rule: str, value: object, remedy: str) -> None:
        super().__init__(key, rule, value, remedy)
        self.key, self.rule, self.value, self.remedy = key, rule, value, remedy

    def __str__(self) -> str:
        return f"{self.key} {self.rule}, got {self.value!r}. {self.remedy}"


class CheckpointError(ConfigError):
    """A checkpoint that cannot be read, converted or trusted; the key is the file, the folder or
    the option.
    """


class TaskError(MegatronAgentError, ValueError):
    """A dataset row or file that does not describe a task; the message names file, row and
    field.
    """


class RegistryError(MegatronAgentError, LookupError):
    """A name that nothing is registered under; the message lists what exists and the nearest
    match.
    """


class EnvError(MegatronAgentError, RuntimeError):
    """An environment crashed, hung, or broke its contract. Inside an episode this is data, not
    an end.
    """


class AnchorError(MegatronAgentError, ValueError):
    """An observation has no anchor, or one that cannot be compared. Steps cannot be credited then,
    so this is a mistake in the environment's code that ends the run, and no failed episode.
    """


class EnvTimeoutError(EnvError):
    """One reset or step took longer than its deadline."""


class EnvDiedError(EnvError):
    """The process of an environment ended while it was working for this session."""


class EnvGarbageError(EnvError):
    """The process of an environment answered with something that is no answer."""


class EnvMemoryError(EnvError):
    """The process of an environment grew beyond ``env.worker_memory_limit``."""


class EnvLostError(EnvError):
    """The process of an environment is gone, and this session was not what ended it."""


class GroupStartError(EnvError):
    """Two sessions of one group started in different states; the message names both seeds."""


class GroupFilterError(MegatronAgentError, RuntimeError):
    """Dynamic sampling reached its bound with too few groups whose returns differ."""


class RewardError(MegatronAgentError, ValueError):
    """A custom reward function answered with something that is no reward."""


class PromptTooLongError(MegatronAgentError, ValueError):
    """A prompt with more tokens than ``data.max_prompt_length``."""


class GenerationError(MegatronAgentError, RuntimeError):
    """The inference server did not return a response."""


class CreditError(MegatronAgentError, ValueError):
    """Rows that no credit can be computed from; the message names group, session and step."""


class HookError(MegatronAgentError, RuntimeError):
    """verl, Megatron or SGLang lacks a hook that this package relies on (another version, or a
    plugin that was not loaded).
    """


class FailureRateError(MegatronAgentError, RuntimeError):
    """More episodes failed than ``env.max_failure_rate`` allows."""


class LostProcessError(MegatronAgentError, RuntimeError):
    """An inference server, a rank or a node of the run is gone. Nothing is wrong with the run; the
    same command goes on from the last complete checkpoint.
    """
