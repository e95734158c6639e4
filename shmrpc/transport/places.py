"""Where a service is met: a name alone is this host's, a URL says which transport carries the frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from shmrpc.transport.base import Dial, ThreadDial
from shmrpc.transport.listening import OpenInbox
from shmrpc.transport.memory import Memory
from shmrpc.transport.options import ConnectionOptions
from shmrpc.transport.shm.transport import SharedMemory


class Transport(Protocol):
    """A way between clients and servers. Each method raises ValueError for an option that it does not have.

    **Deadlines.** A request has its deadline as an instant of this host's ``CLOCK_MONOTONIC``, so both transports that
    there are hand it on as it is. One that leaves the host translates at its two ends, where the frame goes and where
    it comes: what travels is the time that is left, and the receiver adds its own clock.
    """

    #: Whether a client comes by a socket, which one process can accept and another one serve: see `Server.adopt`.
    adopts: bool

    def inbox(self, options: ConnectionOptions, /) -> OpenInbox:
        """What opens the inbox of a server."""
        ...

    def dial(self, service: str, options: ConnectionOptions, /) -> Dial:
        """What connects a client in a loop."""
        ...

    def thread_dial(self, service: str, options: ConnectionOptions, /) -> ThreadDial:
        """What connects a client for threads; ValueError if there are none on this transport."""
        ...


#: By the scheme of a URL. A new transport is added here.
TRANSPORTS: Final[Mapping[str, Transport]] = {"shm": SharedMemory(), "memory": Memory()}
#: Where a name alone is looked for.
_HERE: Final = "shm://"

_S = TypeVar("_S")


def transport_at(at: str | Transport | None) -> Transport:
    """The transport of a place, ``"memory://"``; None: this host's shared memory. ValueError if there is none such."""
    if at is not None and not isinstance(at, str):
        if not hasattr(at, "inbox"):
            raise TypeError(f"at: expected a URL such as 'memory://', got {at!r}")
        return at
    scheme, separator, rest = (_HERE if at is None else at).partition("://")
    transport = TRANSPORTS.get(scheme)
    known = " and ".join(f"{each}://" for each in TRANSPORTS)
    if transport is None or not separator:
        raise ValueError(f"{at!r} is no place where services are met: expected a URL, and the known ones are {known}")
    if rest:
        raise ValueError(f"at: expected '{scheme}://' alone, got {at!r}; the name is the service's own")
    return transport


def find(service: _S, at: str | Transport | None) -> tuple[Transport, _S | str]:
    """The transport to a service, and the service; a URL such as ``"memory://calculator"`` says both."""
    if not isinstance(service, str) or "://" not in service:
        return transport_at(at), service
    scheme, _, name = service.partition("://")
    if at is not None:
        raise ValueError(f"{service!r} says where the service is met, and at={at!r} does too: leave one out")
    transport = transport_at(f"{scheme}://")
    if "/" in name:
        raise ValueError(f"{service!r}: expected {scheme}://NAME, since {scheme}:// does not leave this host")
    return transport, name
