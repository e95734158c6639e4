"""What a module of values adds to MessagePack. :mod:`shmrpc.values.all_extensions` gathers these."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shmrpc.values.reading import Reader
from shmrpc.values.writing import Writer


class Extension(msgspec.Struct, frozen=True):
    """An extension of MessagePack's: which values travel by it, and how they are written and read."""

    #: Its number in a body.
    code: int
    #: What an error calls such a value.
    name: str
    #: What its payload is, as in the table of docs/wire.md. *Data* is bytes, or the place of a buffer.
    payload: str
    #: Makes the value from its decoded payload.
    read: Reader
    #: The writer of the instances of each class; the first class that fits counts. A name such as ``numpy.ndarray``
    #: stands for a class that is looked for only once the program has imported its module.
    writers: Mapping[type | str, Writer] = {}
    #: Returns True for a class, derived from one of these, whose instances arrive as its instances too. Those of other
    #: derived classes are refused, or pickled where pickles are allowed.
    covers: Callable[[type], bool] = lambda kind: False
    #: Finds what writes a value of a class that no extension names; None if the value does not travel by this one.
    adopt: Callable[[Any], Writer | None] = lambda value: None
    #: True if only a receiver that declares its types can read it: queues and stores write nothing by it.
    declared: bool = False


def imported(name: str) -> type | None:
    """The class that a name in :attr:`Extension.writers` stands for; None until the program has imported its module."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None)
