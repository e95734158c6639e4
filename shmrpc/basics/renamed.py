"""Hints for public names that were renamed before the first release: the old name raises an error with the new one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])

#: Names of ``shmrpc``, by their old names.
RENAMED_NAMES: Final = {
    "CutOff": "shmrpc.SlowConsumer",
    "Gone": "shmrpc.ObjectDeleted",
    "NameInUse": "shmrpc.NameConflict",
    "add": "shmrpc.atomic.add()",
    "changes": "shmrpc.watch()",
    "compare_and_set": "shmrpc.atomic.compare_and_set()",
    "disconnect": "shmrpc.Disconnect(n)",
    "keep_last": "shmrpc.KeepLast(n)",
    "update": "shmrpc.atomic.update()",
}


def raise_if_renamed(module: str, name: str) -> None:
    """Raise AttributeError with the new name if ``name`` is an old name of the package; return otherwise.

    In ``from ... import``, raise ImportError instead. To be called directly by the ``__getattr__`` of the module.
    """
    now = RENAMED_NAMES.get(name)
    if now is None:
        return
    text = f"{module}.{name} was renamed: use {now}"
    # `from shmrpc import name` discards an AttributeError, and raises an ImportError without its text.
    is_import = any(sys._getframe(depth).f_code.co_name == "_handle_fromlist" for depth in (2, 3))
    raise ImportError(text) if is_import else AttributeError(text, name=name)


class RenamedMethod:
    """Class attribute in place of a renamed method: access raises AttributeError with the new name."""

    def __init__(self, now: str) -> None:
        self._now = now

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        kind = owner.__name__
        raise AttributeError(f"{kind}.{self._name}() was renamed: use {self._now}", name=self._name)


class HideRenamed:
    """Base of a class with renamed methods: ``dir()`` of an instance, and so completion, leaves the old names out."""

    def __dir__(self) -> list[str]:
        import inspect  # Slow to import, and needed only here.

        names = super().__dir__()
        return [each for each in names if not isinstance(inspect.getattr_static(self, each, None), RenamedMethod)]


def renamed_options(**now: str) -> Callable[[_F], _F]:
    """Return a decorator for a function whose options were renamed: an old name raises TypeError with the new name.

    ``now`` maps old names to new ones.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            for old in now.keys() & options.keys():
                raise TypeError(f"{function.__name__}(): {old}= was renamed: use {now[old]}")
            return function(*arguments, **options)

        return cast("_F", checked)

    return decorate
