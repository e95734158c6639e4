"""Conversion of values between Python and the core of stores."""

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
from shmrpc.stores.keys import canonical_bytes, plain_equivalent
from shmrpc.stores.packing import pack, unpack, unsupported_error
from shmrpc.stores.records import NewStruct, SharedClass, find_shared_class, registered_class
from shmrpc.stores.shared_container import DICT_TYPE, LIST_TYPE, RECORD_TYPE, SET_TYPE, SharedContainer
from shmrpc.stores.shared_dict import SharedDict
from shmrpc.stores.shared_list import SharedList
from shmrpc.stores.shared_set import SharedSet
from shmrpc.values import dtypes
from shmrpc.values.decode_context import UNREADABLE
from shmrpc.values.registry import entry_of
from shmrpc.wire.codec import get_codec

#: The first byte of a value of a type that the core does not know.
_PACKED, _PICKLED = b"m", b"p"
_codec: Final = get_codec("msgspec")
#: Types whose values are always read back equal and of the same type, so that this is not checked.
_EXACT_TYPES: Final = frozenset(
    {complex, decimal.Decimal, range, uuid.UUID, datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


class ValueConverter:
    """The conversions of a store. The core calls the methods by their names."""

    def __init__(self, name: str) -> None:
        self._store_name = name
        self._may_pickle = False
        self._lock = threading.Lock()
        self._numbers: dict[SharedClass, int] = {}
        self._classes: list[SharedClass] = []
        #: The numbers of classes that are committed, as far as this process has asked.
        self._committed: set[int] = set()
        #: The core's part of the store, from which proxies are made. The first handle sets it.
        self.store_ref: _core.StoreRef
        #: The function that finds the class of a name, which must have these fields.
        self.find_class = find_shared_class
        #: The function that makes a value of its packed bytes.
        self.unpack_value = unpack
        self.list_class = SharedList
        self.dict_class = SharedDict
        self.set_class = SharedSet

    def allow_pickle(self) -> None:
        """Pickle values of other types, and unpickle those of other processes, from now on."""
        self._may_pickle = True

    # --- called by the core ---

    def convert(self, value: Any) -> tuple[Any, ...]:
        """Return a value in a form that the core can write.

        The form is ``("as", other value to write instead)``, ``("packed", bytes)``, ``("buffer", description, bytes)``
        or ``("record", class number, field values, extra attributes or None)``. Raises EncodeError, TypeError,
        RecursionError, ObjectDeleted for a removed container, and the errors of :meth:`class_number`.
        """
        kind = type(value)
        if isinstance(value, SharedContainer):
            return "as", value._copy_to_put()
        shared_class = registered_class(kind)
        if shared_class is not None:
            return "record", self.class_number(shared_class), *shared_class.field_values(value)
        if kind is NewStruct:
            return "record", self.class_number(value.shared_class), value.fields, None
        if entry_of(kind) is not None:
            return "packed", self._pack_value(value)
        if kind is bytearray:
            return "buffer", b"b", value
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject:
            return self._describe_array(numpy, value)
        if torch is not None and kind is torch.Tensor:
            return self._describe_tensor(torch, value)
        if dataclasses.is_dataclass(value) and not self._may_pickle:
            # Each read would return another copy of the instance.
            raise self._encode_error(value, str(unsupported_error(value)))
        return "packed", self._pack_value(value)

    def _describe_array(self, numpy: Any, array: Any) -> tuple[Any, ...]:
        """Return a NumPy array in the form of convert(). Raises EncodeError for a dtype that cannot be described."""
        try:
            described = dtypes.encode(array.dtype)
        except TypeError as error:
            raise self._encode_error(array, str(error)) from None
        description = _codec.encode([described, list(array.shape)])
        # reshape() for arrays of no dimensions, view() for dtypes without a buffer format.
        data = numpy.ascontiguousarray(array).reshape(-1).view("u1") if array.size and array.itemsize else b""
        return "buffer", b"a" + cast(bytes, description), data

    def _describe_tensor(self, torch: Any, tensor: Any) -> tuple[Any, ...]:
        """Return a tensor of the CPU in the form of convert(). Raises EncodeError for other tensors."""
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            raise self._encode_error(
                tensor, f"store .cpu().to_dense() of the {tensor.layout} tensor on {tensor.device}"
            )
        try:
            array = tensor.detach().resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:  # NumPy does not have this dtype.
            raise self._encode_error(tensor, str(error)) from None
        form, description, data = self._describe_array(sys.modules["numpy"], array)
        return form, b"t" + description[1:], data

    def _pack_value(self, value: Any) -> bytes:
        """Return the packed bytes of a value, or its pickle if it cannot be packed and pickling is allowed.

        Raises EncodeError for any other value, and RecursionError for deep nesting, also if pickling is allowed.
        """
        try:
            body = _PACKED + pack(value)
            if type(value) not in _EXACT_TYPES:
                self._check_same(value, self.unpack(body))
        except RecursionError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            if is_from_signal_handler(error):
                raise
            if not self._may_pickle:
                raise self._encode_error(value, f"{error}; or open the store with pickle=True") from None
            return self._pickle_value(value)
        return body

    def _check_same(self, value: Any, made: Any) -> None:
        """Raise TypeError if ``made``, the packed value as read back, has another type than ``value``.

        Compares the types of the two values only, not of their items.
        """
        if type(made) is not type(value):
            raise TypeError(f"it would come out as a {type(made).__qualname__}; convert it, or register its class")

    def _pickle_value(self, value: Any) -> bytes:
        """Return the mark of pickles and the pickle of a value, after checking that it can be unpickled.

        Raises RecursionError, and EncodeError for any other failure.
        """
        try:
            body = pickles.dumps(value)
            pickles.loads(body)  # A value that cannot be read back would make each copy of the store fail.
        except RecursionError:
            raise
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            what = f"it cannot be pickled and read again: {type(error).__name__}: {error}"
            raise self._encode_error(value, what) from error
        return _PICKLED + body

    def _encode_error(self, value: Any, why: str) -> EncodeError:
        """Return the error for a value that the store cannot hold."""
        return EncodeError(f"store {self._store_name!r} cannot hold a {type(value).__qualname__}: {why}")

    def too_large_error(self, needed: int, limit: int) -> StoreFull:
        """Return the error for a value that needs at least ``needed`` bytes, more than the limit of the store."""
        return StoreFull(
            f"store {self._store_name!r} cannot take a value of {needed:,} bytes or more: max_memory is {limit:,}; "
            f"open it with more, or put in less"
        )

    def encode_key(self, key: Any) -> Any:
        """Return a key in a form that the core can compare and read back.

        The form is ``(canonical bytes, packed key)``; or ``(None, plain value, packed key)`` if a plain value equals
        the key. Raises TypeError, RecursionError, and EncodeError for a text with lone surrogates.
        """
        equal = plain_equivalent(key)
        try:
            if equal is key:
                return canonical_bytes(key), _PACKED + pack(key)
            return None, equal, _PACKED + pack(key)
        except UnicodeEncodeError as error:
            raise self._encode_error(key, f"a text in it has lone surrogates ({error.reason})") from None

    def unpack(self, body: bytes) -> Any:
        """Return the value of packed or pickled bytes.

        Raises DecodeError if packed bytes cannot be read, any error of unpickling, and LocalProtocolError for a pickle
        without pickle=True.
        """
        if body[:1] == _PICKLED:
            if not self._may_pickle:
                raise LocalProtocolError(
                    f"store {self._store_name!r} holds a pickled value: open it with pickle=True here too"
                )
            return pickles.loads(body[1:])
        return self.unpack_value(body[1:])

    def make_instance(self, number: int, fields: list[Any], extra: dict[str, Any]) -> Any:
        """Make a plain instance of the class with this number.

        Raises ValueError for an unknown number, and DecodeError for a class that this process does not have.
        """
        return self._class_with_number(number).make_instance(fields, extra)

    def copy_buffer(self, description: bytes, data: bytes) -> Any:
        """Make a writable bytearray, array or tensor with a copy of a buffer's bytes.

        ``description`` is a "b", "a" or "t" and the encoded dtype and shape. Raises DecodeError if it does not fit, and
        ImportError for an array without NumPy or a tensor without PyTorch.
        """
        if description[:1] == b"b":
            return bytearray(data)
        return self._make_array(description, bytearray(data))

    def record_class(self, number: int) -> Any:
        """Return the class of proxies for the class with this number.

        Raises ValueError for an unknown number, and DecodeError for a class that this process does not have.
        """
        return self._class_with_number(number).proxy_class

    def view_buffer(self, store_ref: _core.StoreRef, at: int, identity: int) -> Any:
        """Return a view of a buffer: a memoryview, array or tensor of the shared memory.

        The memory stays valid as long as the view. A tensor of a read-only buffer is a copy. Raises DecodeError,
        ObjectDeleted, LocalProtocolError within a transaction, and ImportError without NumPy or PyTorch.
        """
        pinned, description = _core.Proxy(store_ref, at, identity)._pin()
        if description[:1] == b"b":
            return memoryview(pinned)
        return self._make_array(description, pinned)

    def _make_array(self, description: bytes, data: Any) -> Any:
        """Make an array or tensor of a buffer; a tensor of a read-only buffer is a copy.

        Raises DecodeError, and ImportError without NumPy or PyTorch.
        """
        import numpy as np  # Programs without arrays do not need it.

        try:
            dtype, shape = _codec.decode(description[1:])
            made = np.frombuffer(data, "u1").view(dtypes.build(np, dtype)).reshape(shape)
        except (*UNREADABLE, TypeError, ValueError) as error:  # Another process may have overwritten the description.
            raise DecodeError(f"an array in the store cannot be read: {error}") from error
        if description[:1] == b"t":
            import torch  # type: ignore[import-not-found,unused-ignore]

            # A tensor cannot be read-only: in a store that another process owns, it is a copy.
            return torch.from_numpy(made if made.flags.writeable else made.copy())
        return made

    def container_at(self, kind: int, number: int, at: int, identity: int) -> Any:
        """Make a proxy of the container with this type, class number, place and identity.

        Raises ValueError for an unknown type, and DecodeError for a class that this process does not have.
        """
        made: Any = {LIST_TYPE: self.list_class, DICT_TYPE: self.dict_class, SET_TYPE: self.set_class}.get(kind)
        if made is None:
            if kind != RECORD_TYPE:
                raise ValueError(f"there are no objects of type {kind}")
            made = self.record_class(number)
        return made(self.store_ref, at, identity)

    # --- classes ---

    def class_number(self, shared_class: SharedClass) -> int:
        """Return the number of a class in this store, which the first call adds.

        Raises the errors of a change of the store, such as StoreFull, and DecodeError if the class has other fields
        there, or if this process does not have a class that was added before.
        """
        number = self._numbers.get(shared_class)
        if number is None:
            number = self.store_ref.class_number(shared_class.name, shared_class.fields)
            self._class_with_number(number)
            self._numbers[shared_class] = number
        return number

    def committed_class_number(self, shared_class: SharedClass) -> int:
        """Return the number of a class that other processes can look up.

        Raises LocalProtocolError if the class is new in a transaction that is not committed, and the errors of
        :meth:`class_number`, which may add the class.
        """
        number = self.class_number(shared_class)
        if number not in self._committed:
            if not self.store_ref.has_class(number):
                raise LocalProtocolError(
                    f"store {self._store_name!r}: an object of {shared_class.name} cannot be sent within the "
                    "transaction that stores the first one: send it after the transaction"
                )
            self._committed.add(number)
        return number

    def _class_with_number(self, number: int) -> SharedClass:
        """Return the class with this number.

        Reads the classes up to this number, and raises DecodeError if this process does not have each of them with the
        same fields. Raises ValueError for an unknown number.
        """
        if number >= len(self._classes):
            with self._lock:
                classes = self.store_ref.classes()
                found = [(name, tuple(fields)) for name, fields in classes.items()]
                for name, fields in found[len(self._classes) : number + 1]:
                    self._classes.append(self.find_class(name, fields))
        if number >= len(self._classes):
            raise ValueError(f"store {self._store_name!r} has no class of number {number}")
        return self._classes[number]

    def forget_classes(self) -> None:
        """Forget the numbers of classes: a transaction that may have added some was rolled back."""
        with self._lock:
            self._numbers.clear()
            self._classes.clear()
