"""Names of classes by which other processes find them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from shmrpc.errors import DecodeError


def text_of(cls: type) -> str:
    """Returns the name of a class: that of its module, a colon, and its qualified name."""
    # A process that multiprocessing has spawned has the program's module under both names.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def name_of(cls: type) -> str:
    """Returns the same, if the class can be found by it. Raises TypeError if it cannot."""
    name = text_of(cls)
    try:
        found = find_class(name)
    except DecodeError:
        found = None
    if found is not cls:
        raise TypeError(
            f"the class {name} is not found by its name: define it at the top of a module, or register it with "
            f"shmrpc.register()"
        )
    return name


def find_class(name: str) -> Any:
    """Returns what has this name. Imports its module. Raises DecodeError if there is nothing of that name."""
    module, _, qualname = name.partition(":")
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise DecodeError(f"the class {name} of an object in the store cannot be imported here: {error}") from None
    return found
