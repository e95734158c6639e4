"""Across hosts: frames travel through NATS, an engine that exists and that many run."""
