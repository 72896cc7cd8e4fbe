"""Hop 1: a dataset row is a task (placeholder while the room is being built)."""
