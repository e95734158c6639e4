"""Connection of a command to a service."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from shmrpc import sync
from shmrpc.transport.connection_options import DEFAULT_CONNECT_TIMEOUT

if TYPE_CHECKING:
    from shmrpc.introspection.describe import Description


def needs_event_loop(service: str, at: str | list[str] | None) -> bool:
    """Return True if only an asyncio client can reach the service: across hosts, or at several addresses."""
    return isinstance(at, list) or f"{at or ''}{service}".startswith("nats://")


@contextlib.contextmanager
def connected(service: str, *, timeout: float | None, **options: Any) -> Iterator[Callable[[], sync.Client]]:
    """Connect to a service; yield a function that returns the client with the rest of the timeout for its next call.

    A timeout of 0 limits only connecting, which is tried once; a call then has no limit. None limits connecting to its
    default, and no call. Closes the client at the end. Raises UsageError for an invalid address or option, and the
    errors of shmrpc if the service cannot be reached.
    """
    end = time.monotonic() + timeout if timeout else math.inf
    if timeout is None:
        timeout = DEFAULT_CONNECT_TIMEOUT
    with contextlib.ExitStack() as stack:
        try:
            if needs_event_loop(service, options["at"]):
                from shmrpc.cli.blocking_client import connect_blocking

                client: Any = stack.enter_context(connect_blocking(service, timeout=timeout, **options))
            else:
                client = stack.enter_context(sync.connect(service, timeout=timeout, **options))
        except (ValueError, ImportError) as error:
            raise click.UsageError(str(error)) from None
        yield lambda: client.with_options(timeout=max(0.0, end - time.monotonic()))


def fetch_description(service: str, **options: Any) -> Description:
    """Connect to a service and return its description. Raises as :func:`connected` does."""
    with connected(service, **options) as client:
        return client().describe()
