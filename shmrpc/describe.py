"""What a service offers, in words and types: for people, and for tools that have not its source."""

from __future__ import annotations

from shmrpc.service import Service


def describe_service(service: Service) -> list[str]:
    """The names of its endpoints."""
    return list(service.endpoints)
