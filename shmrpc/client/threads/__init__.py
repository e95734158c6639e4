"""The client for threads: the driver of the common parts in blocking code."""
