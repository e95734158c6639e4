"""Arguments that a handler writes in place during its call."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from shmrpc import _core
from shmrpc.service.arguments import Arguments
from shmrpc.service.signature import Signature
from shmrpc.values import writable
from shmrpc.values.arrays import base_of
from shmrpc.values.blocks import Unmapped
from shmrpc.wire.failure import CallRejected, unreadable_call


class WritableArguments:
    """The caller's memory, lent to a handler for the time of its call."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        #: Weak references, so that only views that the handler has kept are left at the end.
        self._views: list[weakref.ref[_core.View]] = []

    def give(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments, with the caller's memory writable in the places of Writable parameters.

        Raises CallRejected for a value that cannot be written to, or if this process cannot map the memory, and
        otherwise the errors of :func:`~shmrpc.values.sharing.writable`.
        """
        names = self._signature.positional_names
        positional = [self._give(name, value) for name, value in zip(names, args, strict=False)]
        return [*positional, *args[len(names) :]], {name: self._give(name, value) for name, value in kwargs.items()}

    def _give(self, name: str, value: Any) -> Any:
        """Return the value for a parameter: the writable memory, or ``value`` for a parameter that is not Writable."""
        if name not in self._signature.writable or value is None:
            return value
        try:
            given = writable(value)
        except Unmapped as error:
            raise unreadable_call(f"{self._signature.name}(): {name!r} cannot be lent for writing", error) from None
        except TypeError as error:
            raise CallRejected("arguments", f"{self._signature.name}(): parameter {name!r}: {error}") from None
        memory = base_of(given)
        if isinstance(memory, _core.View):
            self._views.append(weakref.ref(memory))
        return given

    def end(self) -> None:
        """Return the memory to the caller. Views that the handler has kept become copies. Call this once."""
        for view in self._views:
            kept = view()
            if kept is not None:
                kept.detach()
