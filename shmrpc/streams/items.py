"""The items of a stream: decoding, and the errors of items that cannot be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from shmrpc.values.encode_errors import UNSENDABLE, is_unsendable, reason
from shmrpc.wire.codec import UNREADABLE, Body, Codec
from shmrpc.wire.failure import CallRejected

#: Number of items and their MessagePack array with a long header, or 0 and a single item.
ItemRun = tuple[int, Body]


def item_error(item: Any, error: Exception, kinds: tuple[type[Exception], ...] = UNSENDABLE) -> Exception:
    """Return the rejection of an item if encoding raised one of ``kinds``; any other error unchanged."""
    if isinstance(error, CallRejected) or not is_unsendable(error, kinds):
        return error
    return CallRejected("encode", f"an item, {type(item).__qualname__}, cannot be sent: {reason(error)}")


_split = msgspec.msgpack.Decoder(list[msgspec.Raw])


class ItemDecoder:
    """Decoder of runs of items of one type; with Any as ``kind``, items are not converted."""

    def __init__(self, codec: Codec, kind: Any) -> None:
        #: Decodes the single item in a body.
        self.decode_one = codec.decode if kind is Any else codec.decoder(kind)
        self._decode_array = codec.decoder(list.__class_getitem__(kind))

    def decode_array(self, data: Body) -> Iterable[Any]:
        """Return the items in an array. Iteration raises one of UNREADABLE at an invalid item, and can go on after it.

        The call raises one of UNREADABLE for data that is no array of MessagePack.
        """
        try:
            items = self._decode_array(data)
        except UNREADABLE:
            return self._decode_each(data)
        return items  # type: ignore[no-any-return]

    def iter_lists(self, part: ItemRun) -> Iterable[list[Any]]:
        """Return the items of a run as lists. Iteration or the call raises one of UNREADABLE at an invalid item.

        The items after it are lost, unlike those of :meth:`decode_array`.
        """
        count, data = part
        if not count:
            return ([self.decode_one(data)],)
        items = self.decode_array(data)
        return (items,) if isinstance(items, list) else ([item] for item in items)

    def decode_all(self, part: ItemRun, on_error: Callable[[Exception], Any]) -> Iterable[Any]:
        """Return the items in a run, with the value of ``on_error`` in place of each invalid item.

        Raises ``msgspec.DecodeError`` for data that is no array of MessagePack.
        """
        count, data = part
        try:
            return self._decode_array(data) if count else [self.decode_one(data)]
        except UNREADABLE:
            bodies: Iterable[Body] = map(bytes, _split.decode(data)) if count else [data]
        items: list[Any] = []
        for body in bodies:
            try:
                items.append(self.decode_one(body))
            except UNREADABLE as error:
                items.append(on_error(error))
        return items

    def _decode_each(self, data: Body) -> Iterator[Any]:
        """Return the items of an array, decoded one by one; see :meth:`decode_array`."""
        return map(self.decode_one, map(bytes, _split.decode(data)))  # A generator would end at the first error.
