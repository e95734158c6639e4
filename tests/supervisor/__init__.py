"""Tests of `shmrpc serve`."""
