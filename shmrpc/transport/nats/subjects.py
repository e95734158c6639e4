"""The subjects of NATS that are used, and how the name of a service becomes part of one.

::

    shmrpc.hello.SERVICE          clients that want a server of a service; its servers are one queue group
    shmrpc.status                 whoever wants to know which servers there are; each of them answers
    shmrpc.to.INBOX.LINK.END      what is for one end of one connection, in the process that has this link

INBOX is ``any``, unless the URL names another one so that an account's permissions can tell users apart. LINK and END
are random. Each end of a connection has two such subjects: its peer sends to one, and the other is the reply subject of
what it sends itself, where NATS reports a subject without subscribers. Only the peer is told them, so no other
connection of the same process gives them away.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

#: The queue group of the servers of a service.
GROUP: Final = "shmrpc"
STATUS: Final = "shmrpc.status"
#: The inbox of whoever names none.
ANY_INBOX: Final = "any"

_OUTSIDE: Final = re.compile(r"[^A-Za-z0-9_-]")


def token(name: str) -> str:
    """A name as one token of a subject: what has a meaning there, or is not allowed, is written as ``%XX``."""
    return _OUTSIDE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def hello(service: str) -> str:
    """Where the servers of a service hear of a client that wants one."""
    return f"shmrpc.hello.{token(service)}"


def link(inbox: str, identity: str) -> str:
    """What the subjects of one link begin with."""
    return f"shmrpc.to.{token(inbox)}.{identity}"


def end() -> str:
    """A subject's last token that cannot be guessed."""
    return secrets.token_urlsafe(16)


def is_end(subject: str) -> bool:
    """Whether a subject is that of one end of a connection: a peer names its own, and nothing else is sent to."""
    return _END.fullmatch(subject) is not None


#: Each token has a bound: NATS ends the connection of a sender whose line is longer than it takes.
_END: Final = re.compile(r"shmrpc\.to\.[A-Za-z0-9_%-]{1,64}\.[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64}", re.ASCII)
