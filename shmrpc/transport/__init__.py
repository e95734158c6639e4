"""Transports of frames: shared memory between processes, NATS between hosts, and memory within one event loop."""
