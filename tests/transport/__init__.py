"""Tests of shared memory between a client and a server."""
