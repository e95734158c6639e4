"""The program's own module, `__main__`: how a worker gets it, and which of its objects a worker has by name."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing import process
from typing import Any, Final

#: The name of the program's module, and the one under which a worker has imported it.
MAIN: Final = "__main__"
IMPORTED_MAIN: Final = "__mp_main__"


def preparation() -> bytes:
    """Return the pickled data that multiprocessing gives to a spawned process, for its `spawn.prepare()`."""
    try:
        told: dict[str, Any] = {"dir": os.getcwd()}
    except FileNotFoundError:
        raise FileNotFoundError("the working directory of this process has been removed: os.chdir() first") from None
    told["authkey"] = bytes(process.current_process().authkey)  # What multiprocessing's managers know each other by.
    return pickle.dumps(told | _place())


def has_program() -> bool:
    """Return True if workers can import the program: no notebook, pipe, zipapp or `python -m package`."""
    return bool(_place())


def _place() -> dict[str, str]:
    """Where a worker imports the program from, in multiprocessing's terms; empty if it cannot."""
    main = sys.modules.get(MAIN)
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if isinstance(path, str | os.PathLike):  # A debugger has a class of its own for it.
        path = os.path.normpath(os.path.join(process.ORIGINAL_DIR or "", str(path)))  # type: ignore[attr-defined]
    if name is not None and name != MAIN and not name.endswith(f".{MAIN}"):
        return {"init_main_from_name": str(name)}
    if path is None or not os.path.isfile(path):  # As of a program that is read from a pipe: `<stdin>`.
        return {}
    file = os.path.splitext(os.path.basename(path))[0]
    # The `__main__.py` of a package, a folder or a zipapp has no guard as a rule, so an import would run the program.
    if file == "ipython" or (name is not None and file == MAIN):
        return {}
    return {"init_main_from_path": path}


def take_place() -> None:
    """Have objects of workers' `__mp_main__` found in this program, also if a debugger has replaced its module."""
    if MAIN in sys.modules:
        sys.modules[IMPORTED_MAIN] = sys.modules[MAIN]


def names_here() -> list[str]:
    """In a worker: the names of the classes and functions that the imported program defines."""
    main = sys.modules.get(MAIN)
    if getattr(main, "__name__", None) != IMPORTED_MAIN:
        return []
    return [name for name, each in vars(main).items() if getattr(each, "__module__", None) == IMPORTED_MAIN]


class ByValue:
    """Pickles functions that a worker cannot find by name, and finds out whether they have changed since.

    ``names``: what workers have of the program. Its classes and functions go by reference if they are among these, so
    that a worker has one of each; the others go by value.
    """

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self.names = names
        self._pickler = _pickler_class()

    def has(self, value: Any) -> bool:
        """Return True if workers find this class or function of the program by its name."""
        if getattr(value, "__module__", None) != MAIN:
            return False
        name = getattr(value, "__qualname__", None)
        return isinstance(name, str) and name.partition(".")[0] in self.names and is_at(MAIN, name, value)

    def dumps(self, value: Any) -> tuple[bytes, list[bytes]]:
        """A pickle, and the buffers that lie beside it."""
        file, buffers = io.BytesIO(), list[bytes]()

        def beside(buffer: pickle.PickleBuffer) -> bool:
            try:
                buffers.append(bytes(buffer.raw()))
            except BufferError:  # It does not lie in one piece.
                return True
            return False

        self._pickler(self, file, protocol=5, buffer_callback=beside).dump(value)
        return file.getvalue(), buffers


def _pickler_class() -> Callable[..., Any]:
    import cloudpickle  # type: ignore[import-untyped]  # It takes a while, and most programs need none.

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Cloudpickle's, except that what workers have of the program goes by reference."""

        def __init__(self, by_value: ByValue, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._by_value = by_value

        def reducer_override(self, obj: Any) -> Any:
            if self._by_value.names and self._by_value.has(obj):
                return obj.__qualname__
            return super().reducer_override(obj)

    return Pickler


def is_at(module: str, name: str, value: Any) -> bool:
    """Return True if a module of this process has this object under this name."""
    found: Any = sys.modules.get(module)
    for each in name.split("."):
        try:
            found = getattr(found, each)
        except AttributeError:
            return False
    return found is value
