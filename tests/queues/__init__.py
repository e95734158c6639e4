"""Tests of queues."""
