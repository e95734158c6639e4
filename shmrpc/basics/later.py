"""Names of a module that are imported once somebody asks for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def later(
    module: str, names: dict[str, Any], exported: Iterable[str], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a module.

    ``names`` are those that it has, its ``globals()``, and ``exported`` all that it is to have. ``homes`` says by name
    where one is: in a module, ``"package.module"``, where it may have another name, ``"package.module:Other"``.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, attribute = home.partition(":")
        value = names[name] = getattr(importlib.import_module(place), attribute or name)
        return value

    return find, lambda: sorted({*names, *exported})
