"""Lookup of the services that targets name: MODULE:SERVICE, FILE.py:SERVICE, MODULE or FILE.py."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, TypeVar

from shmrpc.basics.import_hints import is_not_installed
from shmrpc.basics.suggestions import closest_match
from shmrpc.service.service import Service
from shmrpc.supervisor.config import ServeError

_T = TypeVar("_T")
_PACKAGE: Final = Path(__file__).resolve().parents[1]
_EXPECTED: Final = "expected MODULE:SERVICE or FILE.py:SERVICE, as in examples.calculator:calculator"


class TargetImportError(ServeError):
    """Error for a target whose code raised an exception; the text has the user's part of the traceback."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, is_usage=False)


def load_services(targets: Sequence[str], app_dir: str) -> list[Service]:
    """Import and return the services that the targets name, with ``app_dir`` first on the path.

    Raises ServeError for a target that names no service, or whose endpoints cannot run where they are declared to, and
    for two services of one name. Raises TargetImportError, a ServeError, if the module or a called function raises an
    exception.
    """
    _prepend_to_path(app_dir)
    services = [_load_service(target, app_dir) for target in targets]
    names = [service.name for service in services]
    for name in names:
        if names.count(name) > 1:
            raise ServeError(f"{names.count(name)} of the services have the name {name!r}; each needs its own")
    for service in services:
        try:
            service.check_reachable()
        except TypeError as error:
            raise ServeError(str(error)) from None
    return services


def _prepend_to_path(directory: str) -> None:
    """Put a directory first on the path.

    If the directory hides this package, the package's own directory goes before it: processes started later import it.
    """
    sys.path.insert(0, directory)
    other = Path(directory, _PACKAGE.name)
    if other.is_dir() and not other.samefile(_PACKAGE):
        sys.path.insert(0, str(_PACKAGE.parent))


def _load_service(target: str, app_dir: str) -> Service:
    """Import and return the service of a target. Raises ServeError, or TargetImportError for an error of its code."""
    location, colon, name = target.partition(":")
    if not location or (colon and not name):
        raise ServeError(f"{target!r}: {_EXPECTED}")
    is_file = location.endswith(".py") or "/" in location
    module = _import_file(location, app_dir) if is_file else _import_module(location, app_dir)
    return _find_service(module, location, name) if colon else _only_service(module, location)


def _import_file(location: str, app_dir: str) -> ModuleType:
    """Import a file under the name that it has in its package. Raises as :func:`_import_module`."""
    path = Path(app_dir, location).resolve()
    if not path.is_file():
        raise ServeError(f"there is no file {location!r} in {app_dir}; {_EXPECTED}")
    name, base = path.stem, path.parent
    while (base / "__init__.py").exists():
        name, base = f"{base.name}.{name}", base.parent
    if not all(part.isidentifier() for part in name.split(".")):
        raise ServeError(f"{location}: {name!r} cannot be the name of a module; rename the file")
    if str(base) not in sys.path:
        _prepend_to_path(str(base))
    module = _import_module(name, str(base))
    if module.__file__ is None or not path.samefile(module.__file__):
        raise ServeError(f"{location}: there is another module {name!r}, {module.__file__}; rename the file")
    return module


def _import_module(name: str, directory: str) -> ModuleType:
    """Import a module. Raises ServeError if there is none, TargetImportError if it raises an exception."""
    try:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ServeError(f"{name!r} cannot be the name of a module; {_EXPECTED}")
        return _run_user_code(lambda: importlib.import_module(name), f"module {name!r} cannot be imported")
    except ModuleNotFoundError as error:
        if is_not_installed(name, error):
            raise ServeError(
                f"there is no module {name!r} in {directory} or among the installed ones; see --app-dir; {_EXPECTED}"
            ) from None
        raise ServeError(f"module {name!r} cannot be imported: {error}") from None


def _run_user_code(act: Callable[[], _T], what: str) -> _T:
    """Run the user's code; return its result. Raises TargetImportError with the user's part of the traceback.

    Raises ModuleNotFoundError if no code of the user has run, as for a missing target.
    """
    try:
        return act()
    except (Exception, SystemExit) as error:
        trace = error.__traceback__
        while trace is not None and _is_own_frame(trace):
            trace = trace.tb_next
        if trace is None and isinstance(error, ModuleNotFoundError):
            raise  # The traceback has no frame of the user's code.
        text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        raise TargetImportError(f"{what}{_import_hint(error, trace)}:\n{text}") from None


def _is_own_frame(trace: TracebackType) -> bool:
    """Return True if a frame belongs to this module or to the import machinery."""
    path = trace.tb_frame.f_code.co_filename
    return path in (__file__, importlib.__file__) or path.startswith("<frozen importlib")


def _import_hint(error: BaseException, trace: TracebackType | None) -> str:
    """Return a hint for a message: where a missing module is, or that the module exits; "" if there is none."""
    last = trace
    while trace is not None:
        last = last if _is_own_frame(trace) else trace
        trace = trace.tb_next
    if isinstance(error, ModuleNotFoundError) and error.name and last is not None:
        beside = Path(last.tb_frame.f_code.co_filename).parent
        name = error.name.partition(".")[0]
        if (beside / f"{name}.py").exists() or (beside / name).is_dir():
            return f" ({name!r} is in {beside}, which is not on the path: see --app-dir)"
    if isinstance(error, SystemExit):
        return ", because it exits"
    return ""


def _only_service(module: ModuleType, location: str) -> Service:
    """Return the only service of a module, by whatever names. Raises ServeError if there is none, or several."""
    names = _service_names(module)
    if len({id(getattr(module, name)) for name in names}) != 1:
        which = f"several services, say which: {_list_targets(location, names)}" if names else "no shmrpc.Service"
        raise ServeError(f"{location} has {which}")
    return getattr(module, names[0])  # type: ignore[no-any-return]


def _find_service(module: ModuleType, location: str, name: str) -> Service:
    """Return the service with this name in a module, or, if ``()`` follows the name, the result of the function.

    Raises ServeError if that is no service, TargetImportError if the function raises an exception.
    """
    path, is_call = name.removesuffix("()"), name.endswith("()")
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if is_call and callable(found):
        found = _run_user_code(found, f"{location}:{name} fails")
    if isinstance(found, Service):
        return found
    names = _service_names(module)
    if found is None:
        close = closest_match(path, names)
        what = f"nothing named {path!r}" + (f" (did you mean {close!r}?)" if close else "")
    else:
        what = f"{name!r}, but it is of type {type(found).__qualname__}, not a shmrpc.Service"
        if callable(found) and not is_call and not isinstance(found, type):
            what += f" (if it makes one: {location}:{name}())"
    raise ServeError(f"{location} has {what}; its services: {', '.join(names) or 'none'}")


def _service_names(module: ModuleType) -> list[str]:
    """Return the names of all services among a module's globals, also of imported ones."""
    return [name for name, value in vars(module).items() if isinstance(value, Service)]


def _list_targets(location: str, names: Sequence[str]) -> str:
    """Return the targets of services of a module, for a message."""
    return ", ".join(f"{location}:{name}" for name in names)
