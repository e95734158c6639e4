"""Stores: Python's containers and dataclasses in shared memory, which many processes change in place."""
