"""The program's own module, `__main__`: its import in workers, and the pickling of functions that workers lack."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing import process
from typing import Any, Final

#: Name of the program's module, and the name under which a worker imports it.
MAIN: Final = "__main__"
IMPORTED_MAIN: Final = "__mp_main__"


def spawn_preparation() -> bytes:
    """Return the pickled data with which `spawn.prepare()` of multiprocessing prepares a worker process.

    Raises FileNotFoundError if the working directory has been removed.
    """
    try:
        data: dict[str, Any] = {"dir": os.getcwd()}
    except FileNotFoundError:
        raise FileNotFoundError("the working directory of this process has been removed: os.chdir() first") from None
    data["authkey"] = bytes(process.current_process().authkey)  # Managers of multiprocessing authenticate by it.
    return pickle.dumps(data | _main_location())


def can_import_main() -> bool:
    """Return True if workers can import the program: it is no notebook, pipe, zipapp or `python -m package`."""
    return bool(_main_location())


def _main_location() -> dict[str, str]:
    """Return the name or the path from which a worker imports the program, as multiprocessing names them.

    The result is empty if a worker cannot import the program.
    """
    main = sys.modules.get(MAIN)
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if isinstance(path, str | os.PathLike):  # A debugger sets an object of its own class.
        path = os.path.normpath(os.path.join(process.ORIGINAL_DIR or "", str(path)))  # type: ignore[attr-defined]
    if name is not None and name != MAIN and not name.endswith(f".{MAIN}"):
        return {"init_main_from_name": str(name)}
    if path is None or not os.path.isfile(path):  # A program that is read from a pipe has the path `<stdin>`.
        return {}
    file = os.path.splitext(os.path.basename(path))[0]
    # The `__main__.py` of a package, a folder or a zipapp usually has no guard, so an import would run the program.
    if file == "ipython" or (name is not None and file == MAIN):
        return {}
    return {"init_main_from_path": path}


def alias_main_module() -> None:
    """Make objects of workers' `__mp_main__` importable in this program, also if a debugger has replaced its module."""
    if MAIN in sys.modules:
        sys.modules[IMPORTED_MAIN] = sys.modules[MAIN]


def defined_names() -> list[str]:
    """Return the names of the classes and functions that the imported program defines, in a worker.

    The result is empty if the worker has not imported the program.
    """
    main = sys.modules.get(MAIN)
    if getattr(main, "__name__", None) != IMPORTED_MAIN:
        return []
    return [name for name, each in vars(main).items() if getattr(each, "__module__", None) == IMPORTED_MAIN]


class ByValuePickler:
    """A pickler of functions that a worker cannot find by name.

    ``names``: names that workers have of the program. Classes and functions with these names are pickled by reference,
    so that a worker has one object of each; all others by value.
    """

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self.names = names
        self._pickler_class = _make_pickler_class()

    def has_by_name(self, value: Any) -> bool:
        """Return True if workers find this class or function of the program by one of the ``names``."""
        if getattr(value, "__module__", None) != MAIN:
            return False
        name = getattr(value, "__qualname__", None)
        return isinstance(name, str) and name.partition(".")[0] in self.names and is_at(MAIN, name, value)

    def dumps(self, value: Any) -> tuple[bytes, list[bytes]]:
        """Return a pickle, and the buffers beside it. Raises what cloudpickle raises."""
        file, buffers = io.BytesIO(), list[bytes]()

        def keep_beside(buffer: pickle.PickleBuffer) -> bool:
            try:
                buffers.append(bytes(buffer.raw()))
            except BufferError:  # The buffer is not contiguous.
                return True
            return False

        self._pickler_class(self, file, protocol=5, buffer_callback=keep_beside).dump(value)
        return file.getvalue(), buffers


def _make_pickler_class() -> Callable[..., Any]:
    """Return a subclass of cloudpickle's pickler, which pickles the program's objects that workers have by name."""
    import cloudpickle  # type: ignore[import-untyped]  # Slow to import, and most programs do not need it.

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Cloudpickle's pickler, with references for the program's objects that workers have."""

        def __init__(self, by_value: ByValuePickler, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._by_value = by_value

        def reducer_override(self, obj: Any) -> Any:
            """Return the name of an object that workers have; otherwise reduce the object as cloudpickle does."""
            if self._by_value.names and self._by_value.has_by_name(obj):
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
