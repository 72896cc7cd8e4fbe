"""Text environments. Read `base.py` for what one is; `registry.py` finds them by name."""
