"""Subjects of NATS, with the encoding of service names in them.

::

    shmrpc.hello.SERVICE          hellos of clients; the servers of a service are one queue group
    shmrpc.status                 requests for reports, to which each server replies
    shmrpc.to.INBOX.LINK.END      messages to one end of a connection, in the process that has this link

INBOX is ``any``, unless the URL sets another one so that permissions can distinguish users. LINK and END are random.
Each end of a connection has two such subjects: the peer sends to one, and the other is the reply subject of the
messages that the end sends, where NATS reports a subject without subscribers. Only the peer learns them, so no other
connection of the same process reveals them.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

#: Queue group of the servers of a service.
GROUP: Final = "shmrpc"
STATUS: Final = "shmrpc.status"
#: Inbox of a process that sets none.
ANY_INBOX: Final = "any"

_OUTSIDE: Final = re.compile(r"[^A-Za-z0-9_-]")


def token(name: str) -> str:
    """Encode a name as one token of a subject: special characters become ``%XX``."""
    return _OUTSIDE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def hello(service: str) -> str:
    """Return the subject of hellos to the servers of a service."""
    return f"shmrpc.hello.{token(service)}"


def link_prefix(inbox: str, identity: str) -> str:
    """Return the prefix of the subjects of one link."""
    return f"shmrpc.to.{token(inbox)}.{identity}"


def make_end() -> str:
    """Return a random last token for the subject of an end, which cannot be guessed."""
    return secrets.token_urlsafe(16)


def is_end(subject: str) -> bool:
    """Return True if a subject has the form of an end's subject. Of a peer's subjects, only these may be used."""
    return _END.fullmatch(subject) is not None


#: Pattern with bounded tokens, because NATS ends the connection of a sender of too long a line.
_END: Final = re.compile(r"shmrpc\.to\.[A-Za-z0-9_%-]{1,64}\.[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64}", re.ASCII)
