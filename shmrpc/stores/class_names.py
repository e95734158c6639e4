"""Names of classes, by which other processes find them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from shmrpc.errors import DecodeError


def class_name(cls: type) -> str:
    """Return the name of a class: its module, a colon, and its qualified name."""
    # In a process that multiprocessing has spawned, the program's module has both names.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def importable_name(cls: type) -> str:
    """Return the name of a class, after checking that :func:`find_class` finds the class by it.

    Raises TypeError if it finds no class or another one.
    """
    name = class_name(cls)
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
    """Return the class, or any other object, of this name. Import its module if necessary.

    Raises DecodeError if it cannot be found, and what else the module raises while it is imported.
    """
    module, _, qualname = name.partition(":")
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise DecodeError(f"the class {name} of an object in the store cannot be imported here: {error}") from None
    return found
