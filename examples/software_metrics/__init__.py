"""Metrics of all methods of Python's standard library, measured one by one, by a pool of processes."""
