"""How the values of a store are told to the core, and made of what it has found."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import pickle as pickles
import sys
import threading
import uuid
from typing import Any, Final, cast

from shmrpc import _core
from shmrpc.basics.signals import is_from_signal_handler
from shmrpc.errors import DecodeError, EncodeError, LocalProtocolError, StoreFull
from shmrpc.stores.keys import canonical, plain
from shmrpc.stores.packing import pack, refused, unpack
from shmrpc.stores.proxies import Shared, SharedDict, SharedList, SharedSet
from shmrpc.stores.records import NewStruct, SharedClass, named, shared_class
from shmrpc.values import dtypes
from shmrpc.values.decode_context import UNREADABLE
from shmrpc.values.registry import entry_of
from shmrpc.wire.codec import get_codec

_DICT, _SET, _LIST, _RECORD = 17, 18, 16, 19
#: The first byte of a value that the core does not know.
_PACKED, _PICKLED = b"m", b"p"
_codec: Final = get_codec("msgspec")
#: Types whose values are surely read again as they are.
_SURE: Final = frozenset(
    {complex, decimal.Decimal, range, uuid.UUID, datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


class Values:
    """The values of a store."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pickle = False
        self._lock = threading.Lock()
        self._numbers: dict[SharedClass, int] = {}
        self._classes: list[SharedClass] = []
        #: The numbers of those that other processes know, as far as it was asked.
        self._committed: set[int] = set()
        #: What its containers are made of, as soon as there are any.
        self.carrier: _core.StoreRef
        #: Finds the class of a name, which has these fields.
        self.class_named = named
        #: Makes a value again that was packed.
        self.unpack_known = unpack
        self.list = SharedList
        self.dict = SharedDict
        self.set = SharedSet

    def allow_pickle(self) -> None:
        """Lets values of other types be pickled from now on."""
        self._pickle = True

    # --- what the core asks for ---

    def convert(self, value: Any) -> tuple[Any, ...]:
        """Makes of a value what can be written. Raises EncodeError, TypeError and RecursionError."""
        kind = type(value)
        if isinstance(value, Shared):
            return "as", value._copy_to_put()
        known = shared_class(kind)
        if known is not None:
            return "record", self.number_of(known), *known.parts(value)
        if kind is NewStruct:
            return "record", self.number_of(value.known), value.fields, None
        if entry_of(kind) is not None:
            return "packed", self._packed(value)
        if kind is bytearray:
            return "buffer", b"b", value
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject:
            return self._array(numpy, value)
        if torch is not None and kind is torch.Tensor:
            return self._tensor(torch, value)
        if dataclasses.is_dataclass(value) and not self._pickle:
            # A read would return a copy of the instance.
            raise self._refused(value, str(refused(value)))
        return "packed", self._packed(value)

    def _array(self, numpy: Any, array: Any) -> tuple[Any, ...]:
        try:
            described = dtypes.describe(array.dtype)
        except TypeError as error:
            raise self._refused(array, str(error)) from None
        said = _codec.encode([described, list(array.shape)])
        # An array of no dimensions has bytes too; one of a dtype with no buffer format is looked at as bytes.
        data = numpy.ascontiguousarray(array).reshape(-1).view("u1") if array.size and array.itemsize else b""
        return "buffer", b"a" + cast(bytes, said), data

    def _tensor(self, torch: Any, tensor: Any) -> tuple[Any, ...]:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            raise self._refused(tensor, f"store .cpu().to_dense() of the {tensor.layout} tensor on {tensor.device}")
        try:
            array = tensor.detach().resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:  # NumPy has no such dtype.
            raise self._refused(tensor, str(error)) from None
        what, said, data = self._array(sys.modules["numpy"], array)
        return what, b"t" + said[1:], data

    def _packed(self, value: Any) -> bytes:
        try:
            body = _PACKED + pack(value)
            if type(value) not in _SURE:
                self._check_same(value, self.unpack(body))
        except RecursionError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            if is_from_signal_handler(error):
                raise
            if not self._pickle:
                raise self._refused(value, f"{error}; or open the store with pickle=True") from None
            return self._pickled(value)
        return body

    def _check_same(self, value: Any, made: Any) -> None:
        """Raises TypeError if what was made of a packed value is of another type."""
        if type(made) is not type(value):
            raise TypeError(f"it would come out as a {type(made).__qualname__}; convert it, or register its class")

    def _pickled(self, value: Any) -> bytes:
        try:
            body = pickles.dumps(value)
            pickles.loads(body)  # What cannot be read again would spoil each copy of the store.
        except RecursionError:
            raise
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            what = f"it cannot be pickled and read again: {type(error).__name__}: {error}"
            raise self._refused(value, what) from error
        return _PICKLED + body

    def _refused(self, value: Any, why: str) -> EncodeError:
        return EncodeError(f"store {self._name!r} cannot hold a {type(value).__qualname__}: {why}")

    def too_large(self, needed: int, limit: int) -> StoreFull:
        """Makes the error for a value that takes at least so many bytes, and more than the store may have."""
        return StoreFull(
            f"store {self._name!r} cannot take a value of {needed:,} bytes or more: max_memory is {limit:,}; "
            f"open it with more, or put in less"
        )

    def key(self, key: Any) -> Any:
        """Makes of a key what it is compared by, and what it is made of again.

        That is the key itself if the core knows it; bytes for each; or None, a plain value that equals it, and the
        bytes that it is made of. Raises TypeError.
        """
        equal = plain(key)
        try:
            if equal is key:
                return canonical(key), _PACKED + pack(key)
            return None, equal, _PACKED + pack(key)
        except UnicodeEncodeError as error:
            raise self._refused(key, f"a text in it has lone surrogates ({error.reason})") from None

    def unpack(self, body: bytes) -> Any:
        """Makes a value again."""
        if body[:1] == _PICKLED:
            if not self._pickle:
                raise LocalProtocolError(
                    f"store {self._name!r} holds a pickled value: open it with pickle=True here too"
                )
            return pickles.loads(body[1:])
        return self.unpack_known(body[1:])

    def instance(self, number: int, fields: list[Any], extra: dict[str, Any]) -> Any:
        """Makes a plain instance of a class."""
        return self._known(number).make(fields, extra)

    def copied(self, said: bytes, data: bytes) -> Any:
        """Makes a plain buffer."""
        if said[:1] == b"b":
            return bytearray(data)
        return self._viewed(said, bytearray(data))

    def record(self, number: int) -> Any:
        """The class of the proxies of a class."""
        return self._known(number).proxy

    def buffer(self, carrier: _core.StoreRef, at: int, identity: int) -> Any:
        """Looks at a buffer where it lies."""
        pinned, said = _core.Proxy(carrier, at, identity)._pin()
        if said[:1] == b"b":
            return memoryview(pinned)
        return self._viewed(said, pinned)

    def _viewed(self, said: bytes, data: Any) -> Any:
        import numpy as np  # Only who has put an array needs it.

        try:
            dtype, shape = _codec.decode(said[1:])
            made = np.frombuffer(data, "u1").view(dtypes.build(np, dtype)).reshape(shape)
        except (*UNREADABLE, TypeError, ValueError) as error:  # Another process may have written over it.
            raise DecodeError(f"an array in the store cannot be read: {error}") from error
        if said[:1] == b"t":
            import torch  # type: ignore[import-not-found,unused-ignore]

            # A tensor cannot be read-only: of a store that another process owns it is a copy.
            return torch.from_numpy(made if made.flags.writeable else made.copy())
        return made

    def seen(self, kind: int, number: int, at: int, identity: int) -> Any:
        """The container of this type and class that lies there."""
        made: Any = {_LIST: self.list, _DICT: self.dict, _SET: self.set}.get(kind)
        if made is None:
            if kind != _RECORD:
                raise ValueError(f"there are no objects of type {kind}")
            made = self.record(number)
        return made(self.carrier, at, identity)

    # --- classes ---

    def number_of(self, known: SharedClass) -> int:
        """The number of a class in this store. Raises TypeError if its fields are others there."""
        number = self._numbers.get(known)
        if number is None:
            number = self.carrier.class_number(known.name, known.fields)
            self._known(number)
            self._numbers[known] = number
        return number

    def committed_number_of(self, known: SharedClass) -> int:
        """Returns the number of a class as other processes know it.

        Raises LocalProtocolError if the class is new in a transaction that is not committed.
        """
        number = self.number_of(known)
        if number not in self._committed:
            if not self.carrier.has_class(number):
                raise LocalProtocolError(
                    f"store {self._name!r}: an object of {known.name} cannot be sent within the transaction that "
                    "stores the first object of this class; send it after the transaction"
                )
            self._committed.add(number)
        return number

    def _known(self, number: int) -> SharedClass:
        if number >= len(self._classes):
            with self._lock:
                classes = self.carrier.classes()
                found = [(name, tuple(fields)) for name, fields in classes.items()]
                for name, fields in found[len(self._classes) : number + 1]:
                    self._classes.append(self.class_named(name, fields))
        if number >= len(self._classes):
            raise ValueError(f"store {self._name!r} has no class of number {number}")
        return self._classes[number]

    def forget(self) -> None:
        """Forgets the numbers of classes: a transaction in which one may have got its number has come to nothing."""
        with self._lock:
            self._numbers.clear()
            self._classes.clear()
