"""NATS's client, guarded against messages that end it.

Anyone who may publish to a subject of ours chooses the headers and the reply subject of a message. nats-py fails on
some of them, and then reads nothing more: on a header with nothing behind its first line, on a reply subject that is
not UTF-8, on a vertical tab in one. docs/upstream.md has the report. So its parser is replaced by one that hands on
what is used here and nothing else: of headers, the status by which NATS itself reports a subject without subscribers.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

#: The header of a message by which NATS reports that the subject of one of ours has no subscriber.
NO_RESPONDERS: Final = b"NATS/1.0 503"
#: Bytes of a line of the protocol: NATS's own lines about a large cluster are the longest.
_LONGEST_LINE: Final = 1 << 20
_END: Final = b"\r\n"


@functools.cache
def parser_class() -> type[Any]:
    """The class of the parser: nats-py is imported when it is first wanted."""
    module = importlib.import_module("nats.protocol.parser")
    broken = importlib.import_module("nats.errors").ProtocolError

    class Parser(module.Parser):  # type: ignore[misc, name-defined]
        """A parser that no message can end."""

        #: Of the message that comes: its subject, the number of the subscription, its reply subject or nothing.
        _line: tuple[bytes, int, bytes] = (b"", 0, b"")

        async def parse(self, data: bytes = b"") -> None:
            """Take what has come from NATS.

            Raise ProtocolError, which ends the connection, for what NATS never says.
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
            """Read the line before a message: subject, number of the subscription, reply subject if any, sizes."""
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
            header = bytes(self.buf[: self.header_needed])
            data = bytes(self.buf[self.header_needed : self.needed])
            del self.buf[: self.needed + len(_END)]
            self.header_needed, self.state = 0, module.AWAITING_CONTROL_LINE
            subject, number, reply = self._line
            if subject.isascii():  # Ours are.
                is_status = header.startswith(NO_RESPONDERS) and not data and not reply
                status = NO_RESPONDERS + 2 * _END if is_status else None
                await self.nc._process_msg(number, subject, reply, data, status)

        async def _take_line(self, size: int) -> None:
            """Have a line taken that has no message behind it: NATS alone has written it."""
            rest = bytes(self.buf[size:])
            del self.buf[size:]
            try:
                await super().parse()
            except broken:
                raise
            except Exception as error:  # nats-py would end its reading, and say nothing.
                raise broken from error
            if self.buf:
                raise broken
            self.buf.extend(rest)

    return Parser


def make_client() -> Any:
    """Make a client of NATS that no message can end."""
    made = importlib.import_module("nats").NATS()
    made._ps = parser_class()(made)
    return made


def is_undelivered(message: Any) -> bool:
    """Return True if NATS itself reports by this message that one of ours has reached no subscriber."""
    return bool(message.headers) and not message.data
