"""Tests of `shmrpc.testing`."""
