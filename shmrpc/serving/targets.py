"""Finding the services that MODULE:ATTRIBUTE means."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from shmrpc.service import Service
from shmrpc.serving.config import ServeError


def load_services(targets: Sequence[str], app_dir: str) -> list[Service]:
    """The services that the targets mean. Their modules are looked for in ``app_dir`` first.

    Raises ServeError for a target that means none, and what a module raises when it is imported.
    """
    sys.path.insert(0, app_dir)
    services = [_load(target, app_dir) for target in targets]
    names = [service.name for service in services]
    for name in names:
        if names.count(name) > 1:
            raise ServeError(f"{names.count(name)} of the services have the name {name!r}; each needs its own")
    return services


def _load(target: str, app_dir: str) -> Service:
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise ServeError(f"{target!r}: expected MODULE:SERVICE, as in examples.calculator:calculator")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ServeError(
                f"there is no module {module_name!r} in {app_dir} or among the installed ones; see --app-dir"
            ) from None
        raise
    service = getattr(module, name, None)
    if not isinstance(service, Service):
        found = [key for key, value in vars(module).items() if isinstance(value, Service)]
        what = "nothing of this name" if service is None else f"a {type(service).__qualname__}, not a shmrpc.Service"
        raise ServeError(f"{module_name} has {what}; its services: {', '.join(found) or 'none'}")
    return service
