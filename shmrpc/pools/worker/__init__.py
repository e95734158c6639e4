"""Run tasks inside a worker process."""
