"""Run functions in pools of worker processes."""
