"""Addresses of services: a bare name means this host's shared memory, a URL chooses the transport."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from shmrpc.transport.connection import Dial, ThreadDial
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.failover import dial_first
from shmrpc.transport.listener import OpenInbox
from shmrpc.transport.shm.transport import ShmTransport


class Transport(Protocol):
    """Transport of frames between clients and servers. Each method raises ValueError for an unsupported option.

    **Deadlines.** A request carries its deadline as an instant of the host's ``CLOCK_MONOTONIC``. A transport within
    one host passes it on; one between hosts converts it at the receiver.
    """

    #: True if clients come by a socket, which one process can accept and another one serve: see `Server.adopt`.
    adopts: bool
    #: True if any number of processes may serve the same name.
    shares_names: bool

    @property
    def lacks(self) -> Sequence[str]:
        """Connection options that this transport does not support."""
        ...

    def inbox(self, options: ConnectionOptions, /) -> OpenInbox:
        """Return the function that opens the inbox of a server."""
        ...

    def dial(self, service: str, options: ConnectionOptions, /) -> Dial:
        """Return the function that connects a client in an event loop."""
        ...

    def thread_dial(self, service: str, options: ConnectionOptions, /) -> ThreadDial:
        """Return the function that connects a client for threads. Raises ValueError if the transport has none."""
        ...


#: Address of a service: a URL, a transport, or a list of them, of which a client uses the first with a server. None
#: means shared memory.
At: TypeAlias = str | Transport | Sequence[str | Transport] | None


def _parse_nats(rest: str) -> tuple[Transport, str]:
    """Return the transport of a URL after ``nats://``, and the name of a service or "".

    Raises ValueError, whose text has no secret, for an invalid URL, and ImportError without nats-py.
    """
    from shmrpc.transport.nats import address, transport  # Imported on use: few programs need it.

    try:
        nats_address, name = address.parse(rest)
    except ValueError as error:
        raise ValueError(f"{address.without_secrets(f'nats://{rest}')!r}: {error}") from None
    return transport.NatsTransport(nats_address), name


def _make_memory_transport() -> Transport:
    """Return a transport within one event loop."""
    from shmrpc.transport.memory import MemoryTransport  # Imported on use: for tests.

    return MemoryTransport()


def _parse_local(scheme: str, make: Callable[[], Transport]) -> Callable[[str], tuple[Transport, str]]:
    """Return the parser of a scheme within this host, whose transport ``make`` returns."""

    def parse(rest: str) -> tuple[Transport, str]:
        if "/" in rest:
            raise ValueError(
                f"'{scheme}://{rest}': expected {scheme}://NAME, since {scheme}:// does not leave this host"
            )
        return make(), rest

    return parse


#: Parsers by URL scheme. Each takes the part after ``://`` and returns the transport, and the name of a service or "".
#: A new transport is added here.
TRANSPORTS: Final[Mapping[str, Callable[[str], tuple[Transport, str]]]] = {
    "shm": _parse_local("shm", ShmTransport),
    "memory": _parse_local("memory", _make_memory_transport),
    "nats": _parse_nats,
}
#: Hints for schemes that NATS's own tools know.
_HINTS: Final = {
    "tls": "; for NATS with TLS write nats://HOST?tls=on",
    **dict.fromkeys(
        ("ws", "wss"), "; NATS is not reached over WebSocket: write nats://HOST:PORT, its port for clients"
    ),
}
#: Scheme of a bare name.
_DEFAULT_SCHEME: Final = "shm"

_S = TypeVar("_S")


def _parse_url(url: str) -> tuple[Transport, str]:
    """Return the transport of a URL, and the name of a service or "". The name is not checked.

    "shm" alone counts as "shm://". Raises ValueError for an invalid URL or an unknown scheme, and ImportError if the
    transport's package is missing.
    """
    scheme, separator, rest = url.partition("://")
    _check_slashes(url)
    if scheme not in TRANSPORTS or (not separator and scheme != _DEFAULT_SCHEME):
        known = " or ".join(f"{each}://" for each in TRANSPORTS)
        hint = _HINTS.get(scheme.lower(), "") if separator else ""
        raise ValueError(
            f"{_redact(url)} is not the address of a service: expected a URL that starts with {known}{hint}"
        )
    return TRANSPORTS[scheme](rest)


def _check_slashes(url: str) -> None:
    """Raise ValueError for a URL with one slash after its scheme."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme in TRANSPORTS and rest.startswith("/") and not rest.startswith("//"):
        raise ValueError(f"{_redact(url)}: expected two slashes, {scheme}://")


def _redact(url: str) -> str:
    """Return the repr of a URL without its secrets, for a message."""
    before, at, after = url.rpartition("@")
    return repr(f"{before.partition(':')[0]}://…@{after}" if at else url)


def transport_at(at: str | Transport | None) -> Transport:
    """Return the transport of an address such as ``"memory://"``; None means shared memory.

    A transport is returned unchanged. Raises ValueError for an invalid URL or one with the name of a service, TypeError
    for another type, and ImportError if the package of the transport is missing.
    """
    if at is None:
        return ShmTransport()
    if not isinstance(at, str):
        if not hasattr(at, "inbox"):
            raise TypeError(f"at: expected a URL such as 'memory://', got {at!r}")
        return at
    transport, name = _parse_url(at)
    if name:
        raise ValueError(
            f"at: expected an address without a name, got {_redact(at)}; leave out {name!r}, which the service has"
        )
    return transport


def transports_at(at: At) -> list[Transport]:
    """Return the transports of one address or several, in order. Raises as :func:`transport_at`, TypeError for []."""
    if at is None or isinstance(at, str) or hasattr(at, "inbox"):
        return [transport_at(at)]  # type: ignore[arg-type]
    if not isinstance(at, Sequence) or not at:
        raise TypeError(f"at: expected a URL such as 'memory://', or a list of such, got {at!r}")
    return [transport_at(each) for each in at]


def inboxes(at: At, options: ConnectionOptions) -> list[OpenInbox]:
    """Return the functions that open the inboxes of a server, one for each address.

    Raises as :func:`transports_at` for an invalid address, and ValueError for an option that differs from its default
    and that none of the transports supports.
    """
    transports = transports_at(at)
    return [transport.inbox(_options_for(transport, transports, options)) for transport in transports]


def _options_for(
    transport: Transport, transports: Sequence[Transport], options: ConnectionOptions
) -> ConnectionOptions:
    """Return the options for one of several transports, with defaults for those that only others support."""
    others = {name for name in transport.lacks if any(name not in other.lacks for other in transports)}
    defaults = {field.name: field.default for field in dataclasses.fields(options) if field.name in others}
    return dataclasses.replace(options, **defaults)  # type: ignore[arg-type]


def find_transport(service: _S, at: At) -> tuple[Transport, _S | str]:
    """Return the transport to a service, and the service without its address.

    ``service`` may be a URL that has both, such as ``"memory://calculator"``; ``at`` must then be None. Any other
    service is returned as given, and its name is not checked. Raises as :func:`transports_at` for an invalid address,
    and ValueError if an address is missing its service or given twice.
    """
    if isinstance(service, str) and "://" in service:
        if at is not None:
            raise ValueError(f"{_redact(service)} has an address, and so has at=: leave one out")
        transport, name = _parse_url(service)
        if not name:
            raise ValueError(f"{_redact(service)} has no service: add its name")
        return transport, name
    if isinstance(service, str):
        _check_slashes(service)
    transports = transports_at(at)
    return transports[0] if len(transports) == 1 else _FailoverTransport(transports), service


class _FailoverTransport:
    """Transport of several addresses, of which a client uses the first with a server."""

    adopts = shares_names = False
    lacks = ()

    def __init__(self, transports: Sequence[Transport]) -> None:
        self._transports = transports

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        """Raise NotImplementedError: a server opens an inbox at each address."""
        raise NotImplementedError("a server has an inbox for each address")

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """Return the function that connects a client to the first address with a server, see :func:`dial_first`.

        Raises ValueError for an option that none of the transports supports.
        """
        transports = self._transports
        return dial_first(service, [each.dial(service, _options_for(each, transports, options)) for each in transports])

    def thread_dial(self, service: str, options: ConnectionOptions) -> ThreadDial:
        """Raise ValueError: a client for threads has one address. The error of a transport comes first, if any."""
        for transport in self._transports:
            transport.thread_dial(service, _options_for(transport, self._transports, options))
        raise ValueError("a client for threads has one address: give at= one URL")
