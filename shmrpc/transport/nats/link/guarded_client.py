"""NATS's client with a robust parser.

Every user who may publish to a subject of this process chooses the headers and the reply subject of a message. nats-py
fails on some of them, and then stops reading: on a header without fields, a reply subject that is not UTF-8, or one
with a vertical tab. docs/upstream.md has the report. This parser therefore passes on only what is used here; of
headers, only the status that reports a subject without subscribers.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

#: Header of a message by which NATS reports that a subject has no subscriber.
NO_RESPONDERS: Final = b"NATS/1.0 503"
#: Maximum bytes of a line of the protocol. NATS's own lines about a large cluster are the longest.
_LONGEST_LINE: Final = 1 << 20
_END: Final = b"\r\n"


@functools.cache
def parser_class() -> type[Any]:
    """Return the class of the parser. Imports nats-py when first called; raises ImportError without it."""
    module = importlib.import_module("nats.protocol.parser")
    broken = importlib.import_module("nats.errors").ProtocolError

    class Parser(module.Parser):  # type: ignore[misc, name-defined]
        """A parser that survives every message."""

        #: Subject, subscription number, and reply subject (or b"") of the current message.
        _line: tuple[bytes, int, bytes] = (b"", 0, b"")

        async def parse(self, data: bytes = b"") -> None:
            """Parse data from NATS.

            Raises ProtocolError, which ends the connection, for data that NATS never sends.
            """
            self.buf.extend(data)
            while self.buf:
                if self.state == module.AWAITING_MSG_PAYLOAD:
                    if len(self.buf) < self.needed + len(_END):
                        return
                    await self._take_message()
                    continue
                end = self.buf.find(_END)
                if end < 0:
                    if len(self.buf) > _LONGEST_LINE:
                        raise broken
                    return
                if self.buf.startswith((b"MSG ", b"HMSG ")):
                    self._read_line(bytes(self.buf[:end]))
                    del self.buf[: end + len(_END)]
                else:
                    await self._take_line(end + len(_END))

        def _read_line(self, line: bytes) -> None:
            """Parse the line before a message: subject, number of the subscription, optional reply subject, sizes."""
            try:
                kind, subject, number, *rest = line.split(b" ")
                sizes = rest[-2:] if kind == b"HMSG" else rest[-1:]
                reply = rest[: -len(sizes)]
                header, size = int(sizes[0]) if kind == b"HMSG" else 0, int(sizes[-1])
                self._line = subject, int(number), reply[0] if reply and reply[0].isascii() else b""
            except (ValueError, IndexError):
                raise broken from None
            if len(reply) > 1 or not 0 <= header <= size:
                raise broken
            self.header_needed, self.needed = header, size
            self.state = module.AWAITING_MSG_PAYLOAD

        async def _take_message(self) -> None:
            """Pass on the message whose bytes are complete; drop a message whose subject is not ASCII."""
            header = bytes(self.buf[: self.header_needed])
            data = bytes(self.buf[self.header_needed : self.needed])
            del self.buf[: self.needed + len(_END)]
            self.header_needed, self.state = 0, module.AWAITING_CONTROL_LINE
            subject, number, reply = self._line
            if subject.isascii():  # Subjects of this process are ASCII.
                is_status = header.startswith(NO_RESPONDERS) and not data and not reply
                status = NO_RESPONDERS + 2 * _END if is_status else None
                await self.nc._process_msg(number, subject, reply, data, status)

        async def _take_line(self, size: int) -> None:
            """Parse a line without a message, which only NATS itself can have written."""
            rest = bytes(self.buf[size:])
            del self.buf[size:]
            try:
                await super().parse()
            except broken:
                raise
            except Exception as error:  # nats-py would stop reading without an error.
                raise broken from error
            if self.buf:
                raise broken
            self.buf.extend(rest)

    return Parser


def make_client() -> Any:
    """Create a client of NATS with the robust parser. The client is not connected. Raises ImportError."""
    client = importlib.import_module("nats").NATS()
    client._ps = parser_class()(client)
    return client


def is_undelivered(message: Any) -> bool:
    """Return True if NATS reports by this message that another one has reached no subscriber."""
    return bool(message.headers) and not message.data
