"""The parts that all kinds of shared objects have in common: handles, waiting in event loops, lock files, checks."""
