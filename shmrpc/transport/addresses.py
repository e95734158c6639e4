"""Where a service is met: a name alone is this host's, a URL says which transport carries the frames."""

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
    """A way between clients and servers. Each method raises ValueError for an option that it does not have.

    **Deadlines.** A request has its deadline as an instant of its host's ``CLOCK_MONOTONIC``, so what does not leave
    the host hands it on as it is. What does translates at the end where the frame comes.
    """

    #: Whether a client comes by a socket, which one process can accept and another one serve: see `Server.adopt`.
    adopts: bool
    #: Whether any number of processes may serve one name, each by itself.
    shares_names: bool

    @property
    def lacks(self) -> Sequence[str]:
        """Options of a connection that mean nothing here."""
        ...

    def inbox(self, options: ConnectionOptions, /) -> OpenInbox:
        """What opens the inbox of a server."""
        ...

    def dial(self, service: str, options: ConnectionOptions, /) -> Dial:
        """What connects a client in a loop."""
        ...

    def thread_dial(self, service: str, options: ConnectionOptions, /) -> ThreadDial:
        """What connects a client for threads; ValueError if there are none on this transport."""
        ...


#: Where services are met: a URL, a transport, or several of either, of which a client takes the first that has one.
At: TypeAlias = str | Transport | Sequence[str | Transport] | None


def _parse_nats(rest: str) -> tuple[Transport, str]:
    from shmrpc.transport.nats import address, transport  # Not before somebody wants it: few do.

    try:
        place, name = address.parse(rest)
    except ValueError as error:
        raise ValueError(f"{address.without_secrets(f'nats://{rest}')!r}: {error}") from None
    return transport.NatsTransport(place), name


def _make_memory_transport() -> Transport:
    from shmrpc.transport.memory import MemoryTransport  # For tests.

    return MemoryTransport()


def _parse_local(scheme: str, transport: Callable[[], Transport]) -> Callable[[str], tuple[Transport, str]]:
    def read(rest: str) -> tuple[Transport, str]:
        if "/" in rest:
            raise ValueError(
                f"'{scheme}://{rest}': expected {scheme}://NAME, since {scheme}:// does not leave this host"
            )
        return transport(), rest

    return read


#: By the scheme of a URL: the transport, and the name of a service or "", in what comes after ``://``. A new transport
#: is added here.
TRANSPORTS: Final[Mapping[str, Callable[[str], tuple[Transport, str]]]] = {
    "shm": _parse_local("shm", ShmTransport),
    "memory": _parse_local("memory", _make_memory_transport),
    "nats": _parse_nats,
}
#: The scheme to write instead, by schemes that NATS's own tools know.
_HINTS: Final = {
    "tls": "; for NATS with TLS write nats://HOST?tls=on",
    **dict.fromkeys(
        ("ws", "wss"), "; NATS is not reached over WebSocket: write nats://HOST:PORT, its port for clients"
    ),
}
#: Where a name alone is looked for.
_DEFAULT_SCHEME: Final = "shm"

_S = TypeVar("_S")


def _parse_url(url: str) -> tuple[Transport, str]:
    scheme, separator, rest = url.partition("://")
    _check_slashes(url)
    if scheme not in TRANSPORTS or (not separator and scheme != _DEFAULT_SCHEME):
        known = " and ".join(f"{each}://" for each in TRANSPORTS)
        hint = _HINTS.get(scheme.lower(), "") if separator else ""
        raise ValueError(
            f"{_redacted(url)} is no place where services are met: expected a URL, and the known ones are {known}{hint}"
        )
    return TRANSPORTS[scheme](rest)


def _check_slashes(url: str) -> None:
    scheme, colon, rest = url.partition(":")
    if colon and scheme in TRANSPORTS and rest.startswith("/") and not rest.startswith("//"):
        raise ValueError(f"{_redacted(url)}: expected two slashes, {scheme}://")


def _redacted(url: str) -> str:
    """A URL for a message: its secrets are nobody's business."""
    before, at, after = url.rpartition("@")
    return repr(f"{before.partition(':')[0]}://…@{after}" if at else url)


def transport_at(at: str | Transport | None) -> Transport:
    """The transport of a place, ``"memory://"``; None: this host's shared memory. ValueError if there is none such."""
    if at is None:
        return ShmTransport()
    if not isinstance(at, str):
        if not hasattr(at, "inbox"):
            raise TypeError(f"at: expected a URL such as 'memory://', got {at!r}")
        return at
    transport, name = _parse_url(at)
    if name:
        raise ValueError(f"at: expected a place alone, got {_redacted(at)}; the name {name!r} is the service's own")
    return transport


def transports_at(at: At) -> list[Transport]:
    """The transports of one place or several, in their order. ValueError if there is no such place, or none at all."""
    if at is None or isinstance(at, str) or hasattr(at, "inbox"):
        return [transport_at(at)]  # type: ignore[arg-type]
    if not isinstance(at, Sequence) or not at:
        raise TypeError(f"at: expected a URL such as 'memory://', or a list of such, got {at!r}")
    return [transport_at(each) for each in at]


def inboxes(at: At, options: ConnectionOptions) -> list[OpenInbox]:
    """What opens the inboxes of a server, one for each place."""
    transports = transports_at(at)
    return [transport.inbox(_options_for(transport, transports, options)) for transport in transports]


def _options_for(
    transport: Transport, transports: Sequence[Transport], options: ConnectionOptions
) -> ConnectionOptions:
    """The options for one of several transports: without those that it lacks, if another one has them."""
    others = {name for name in transport.lacks if any(name not in other.lacks for other in transports)}
    defaults = {field.name: field.default for field in dataclasses.fields(options) if field.name in others}
    return dataclasses.replace(options, **defaults)  # type: ignore[arg-type]


def find_transport(service: _S, at: At) -> tuple[Transport, _S | str]:
    """The transport to a service, and the service; a URL such as ``"memory://calculator"`` says both."""
    if isinstance(service, str) and "://" in service:
        if at is not None:
            raise ValueError(f"{_redacted(service)} says where the service is met, and at= does too: leave one out")
        place, name = _parse_url(service)
        if not name:
            raise ValueError(f"{_redacted(service)} says where, and no service: expected its name behind that")
        return place, name
    if isinstance(service, str):
        _check_slashes(service)
    transports = transports_at(at)
    transport: Transport = transports[0] if len(transports) == 1 else _FailoverTransport(transports)
    return transport, service


class _FailoverTransport:
    """Several places, of which a client takes the first where there is a server."""

    adopts = shares_names = False
    lacks = ()

    def __init__(self, transports: Sequence[Transport]) -> None:
        self._transports = transports

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        raise NotImplementedError("a server has an inbox for each place")

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        transports = self._transports
        return dial_first(service, [each.dial(service, _options_for(each, transports, options)) for each in transports])

    def thread_dial(self, service: str, options: ConnectionOptions) -> ThreadDial:
        for transport in self._transports:
            transport.thread_dial(service, _options_for(transport, self._transports, options))
        raise ValueError("a client for threads is met at one place: give at= one URL")
