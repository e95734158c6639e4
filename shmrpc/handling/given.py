"""Arguments that a handler writes in place, for the time of its call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from shmrpc import _core
from shmrpc.signature import Arguments, Signature
from shmrpc.values import writable
from shmrpc.values.arrays import base_of


@contextmanager
def given_away(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Arguments]:
    """The arguments with the caller's own memory in the places of the Writable ones.

    At the end of the block it is the caller's again: whoever keeps such an array goes on with a copy.
    """
    names = signature.positional_names
    given: list[Any] = []

    def give(name: str, value: Any) -> Any:
        if name not in signature.writable or value is None:
            return value
        given.append(writable(value))
        return given[-1]

    positional = [give(name, value) for name, value in zip(names, args, strict=False)]
    try:
        yield [*positional, *args[len(names) :]], {name: give(name, value) for name, value in kwargs.items()}
    finally:
        for value in given:
            memory = base_of(value)
            if isinstance(memory, _core.View):
                memory.detach()
