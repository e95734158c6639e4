"""Finds the service that a target names: MODULE:SERVICE, FILE.py:SERVICE, or one of these alone."""

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


class BrokenModule(ServeError):
    """What is to be served raised an exception when imported; the text has the user's part of the traceback."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, is_usage=False)


def load_services(targets: Sequence[str], app_dir: str) -> list[Service]:
    """The services that the targets name. Their modules are looked for in ``app_dir`` first.

    Raises ServeError for a target that names none, or whose endpoints cannot run where they should, BrokenModule if its
    module raises an exception.
    """
    _look_in(app_dir)
    services = [_load(target, app_dir) for target in targets]
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


def _look_in(directory: str) -> None:
    """Let Python look for modules there first, except for this package, which processes started later import too."""
    sys.path.insert(0, directory)
    other = Path(directory, _PACKAGE.name)
    if other.is_dir() and not other.samefile(_PACKAGE):
        sys.path.insert(0, str(_PACKAGE.parent))


def _load(target: str, app_dir: str) -> Service:
    place, colon, name = target.partition(":")
    if not place or (colon and not name):
        raise ServeError(f"{target!r}: {_EXPECTED}")
    is_file = place.endswith(".py") or "/" in place
    module = _import_file(place, app_dir) if is_file else _import(place, app_dir)
    return _attribute(module, place, name) if colon else _only_service(module, place)


def _import_file(place: str, app_dir: str) -> ModuleType:
    """Import a file under the name that it has in its package."""
    path = Path(app_dir, place).resolve()
    if not path.is_file():
        raise ServeError(f"there is no file {place!r} in {app_dir}; {_EXPECTED}")
    name, base = path.stem, path.parent
    while (base / "__init__.py").exists():
        name, base = f"{base.name}.{name}", base.parent
    if not all(part.isidentifier() for part in name.split(".")):
        raise ServeError(f"{place}: {name!r} cannot be the name of a module; rename the file")
    if str(base) not in sys.path:
        _look_in(str(base))
    module = _import(name, str(base))
    if module.__file__ is None or not path.samefile(module.__file__):
        raise ServeError(f"{place}: there is another module {name!r}, {module.__file__}; rename the file")
    return module


def _import(name: str, directory: str) -> ModuleType:
    try:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ServeError(f"{name!r} cannot be the name of a module; {_EXPECTED}")
        return _of_the_user(lambda: importlib.import_module(name), f"module {name!r} cannot be imported")
    except ModuleNotFoundError as error:
        if is_not_installed(name, error):
            raise ServeError(
                f"there is no module {name!r} in {directory} or among the installed ones; see --app-dir; {_EXPECTED}"
            ) from None
        raise ServeError(f"module {name!r} cannot be imported: {error}") from None


def _of_the_user(act: Callable[[], _T], what: str) -> _T:
    """Run the user's code. Raises BrokenModule, with the user's part of the traceback, if it fails."""
    try:
        return act()
    except (Exception, SystemExit) as error:
        trace = error.__traceback__
        while trace is not None and _is_ours(trace):
            trace = trace.tb_next
        if trace is None and isinstance(error, ModuleNotFoundError):
            raise  # No code of the user's was found.
        text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        raise BrokenModule(f"{what}{_hint(error, trace)}:\n{text}") from None


def _is_ours(trace: TracebackType) -> bool:
    path = trace.tb_frame.f_code.co_filename
    return path in (__file__, importlib.__file__) or path.startswith("<frozen importlib")


def _hint(error: BaseException, trace: TracebackType | None) -> str:
    """Where the module is that the user's module did not find, or that it exits."""
    last = trace
    while trace is not None:
        last = last if _is_ours(trace) else trace
        trace = trace.tb_next
    if isinstance(error, ModuleNotFoundError) and error.name and last is not None:
        beside = Path(last.tb_frame.f_code.co_filename).parent
        name = error.name.partition(".")[0]
        if (beside / f"{name}.py").exists() or (beside / name).is_dir():
            return f" ({name!r} lies in {beside}, where modules are not looked for: see --app-dir)"
    if isinstance(error, SystemExit):
        return ", since it exits"
    return ""


def _only_service(module: ModuleType, place: str) -> Service:
    names = _services(module)
    if len({id(getattr(module, name)) for name in names}) != 1:
        which = f"several services, say which: {_listed(place, names)}" if names else "no shmrpc.Service"
        raise ServeError(f"{place} has {which}")
    return getattr(module, names[0])  # type: ignore[no-any-return]


def _attribute(module: ModuleType, place: str, name: str) -> Service:
    """What has this name in a module; what the function returns if ``()`` follows its name."""
    path, is_call = name.removesuffix("()"), name.endswith("()")
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if is_call and callable(found):
        found = _of_the_user(found, f"{place}:{name} fails")
    if isinstance(found, Service):
        return found
    names = _services(module)
    if found is None:
        close = closest_match(path, names)
        what = f"nothing named {path!r}" + (f" (did you mean {close!r}?)" if close else "")
    else:
        what = f"{name!r}, but it is of type {type(found).__qualname__}, not a shmrpc.Service"
        if callable(found) and not is_call and not isinstance(found, type):
            what += f" (if it makes one: {place}:{name}())"
    raise ServeError(f"{place} has {what}; its services: {', '.join(names) or 'none'}")


def _services(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Service)]


def _listed(place: str, names: Sequence[str]) -> str:
    return ", ".join(f"{place}:{name}" for name in names)
