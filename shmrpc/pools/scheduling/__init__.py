"""Decide which worker runs which task, and recover the tasks of a worker that dies."""
