"""The items of a stream: how they come, how they are read, and why one cannot be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from shmrpc.values.unsendable import UNSENDABLE, is_unsendable, reason
from shmrpc.wire.codec import UNREADABLE, Body, Codec
from shmrpc.wire.failure import CallRejected

#: How many items, and these as a MessagePack array with a long header; 0, and one item as it is.
Part = tuple[int, Body]


def unsendable_item(item: Any, error: Exception, kinds: tuple[type[Exception], ...] = UNSENDABLE) -> Exception:
    """The rejection of an item that encoding has failed with. What is not of ``kinds``, or a handler's, stays."""
    if isinstance(error, CallRejected) or not is_unsendable(error, kinds):
        return error
    return CallRejected("encode", f"an item, {type(item).__qualname__}, cannot be sent: {reason(error)}")


_split = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Reader:
    """Turns what has come into items of a type."""

    def __init__(self, codec: Codec, kind: Any) -> None:
        #: The item in a body.
        self.one = codec.decode if kind is Any else codec.decoder(kind)
        self._many = codec.decoder(list.__class_getitem__(kind))

    def many(self, data: Body) -> Iterable[Any]:
        """The items in an array; one of UNREADABLE at the one that cannot be read, after those before it."""
        try:
            items = self._many(data)
        except UNREADABLE:
            return self._one_by_one(data)
        return items  # type: ignore[no-any-return]

    def runs(self, part: Part) -> Iterable[list[Any]]:
        """The items that have come together; one of UNREADABLE at the one that cannot be read, after those before."""
        count, data = part
        if not count:
            return ([self.one(data)],)
        items = self.many(data)
        return (items,) if isinstance(items, list) else ([item] for item in items)

    def all(self, part: Part, instead: Callable[[Exception], Any]) -> Iterable[Any]:
        """The items that have come together; what ``instead`` makes of the error of one that cannot be read."""
        count, data = part
        try:
            return self._many(data) if count else [self.one(data)]
        except UNREADABLE:
            bodies: Iterable[Body] = map(bytes, _split.decode(data)) if count else [data]
        items: list[Any] = []
        for body in bodies:
            try:
                items.append(self.one(body))
            except UNREADABLE as error:
                items.append(instead(error))
        return items

    def _one_by_one(self, data: Body) -> Iterator[Any]:
        for body in _split.decode(data):
            yield self.one(bytes(body))
