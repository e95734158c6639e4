"""Tests of services on several hosts, over NATS."""
