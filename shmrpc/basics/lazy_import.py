"""Names of a module that are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_attributes(
    module: str, names: dict[str, Any], exported: Iterable[str], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` functions of a module that imports names on first use.

    ``names`` is the module's ``globals()``, to which ``__getattr__`` adds each imported name; it raises AttributeError
    for a name that is not in ``homes``. ``exported`` are the public names, which ``__dir__`` lists together with all in
    ``names``. ``homes`` maps a name to the module that defines it, ``"package.module"``, or to the module and another
    name there, ``"package.module:Other"``; the errors of importing that module are raised as they are.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, attribute = home.partition(":")
        value = names[name] = getattr(importlib.import_module(place), attribute or name)
        return value

    return find, lambda: sorted({*names, *exported})
