"""Names under which this package registers with verl. No imports: the driver reads them before
verl is there.
"""

TRAINER_PREFIX = "agent_"
"""A trainer for verl's mode ``sync`` is registered as ``agent_sync``, and so on."""

ESTIMATOR_NAME = "agent_credit"
"""verl advantage estimator that spreads our row credit over tokens."""
