"""Definition of an extension of MessagePack; :mod:`shmrpc.values.all_extensions` lists all extensions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shmrpc.values.decode_context import Reader
from shmrpc.values.encode_context import Writer


class Extension(msgspec.Struct, frozen=True):
    """Extension of MessagePack: the values that it carries, with the functions that encode and decode them."""

    #: Code of the extension in a body.
    code: int
    #: Name of such a value in errors.
    name: str
    #: Description of the payload for docs/wire.md. *Data* is bytes, or the index of a buffer.
    payload: str
    #: Decodes the value from its payload.
    read: Reader
    #: Writers by class; the first class that fits is used. A name such as ``numpy.ndarray`` means a class that is
    #: looked up once the program has imported its module.
    writers: Mapping[type | str, Writer] = {}
    #: Returns True for a class derived from one of ``writers`` whose instances arrive as instances of it. Instances of
    #: other derived classes are refused, or pickled where pickles are allowed.
    covers: Callable[[type], bool] = lambda kind: False
    #: Returns the writer for a value of a class that no extension names, or None if this extension does not carry it.
    adopt: Callable[[Any], Writer | None] = lambda value: None
    #: True if only a receiver with declared types can decode it; queues and stores do not use such an extension.
    declared: bool = False


def imported(name: str) -> type | None:
    """Return the class of a name such as ``numpy.ndarray``, or None if the program has not imported its module."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None)
