"""``megatron-agent env ...``: list, check, play and evaluate environments without training."""
