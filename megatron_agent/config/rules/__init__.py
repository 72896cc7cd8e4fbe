"""Rules that span several keys, one module per subject; each records all that it finds."""
