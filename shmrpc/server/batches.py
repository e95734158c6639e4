"""Many calls in one frame: how they are read, run, and answered. A failure is its own call's alone."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from shmrpc import _core
from shmrpc.server.call_runner import CallRunner, Encoded
from shmrpc.server.interrupts import is_for_the_program
from shmrpc.service.signature import Signature
from shmrpc.streams.sending import SLICE
from shmrpc.wire.codec import UNREADABLE, Body, Codec
from shmrpc.wire.frames import Failure, Header, Rejected, unreadable

#: The results in order, None for the failed ones, and these by their place.
Outcomes = tuple[list[Any], dict[int, Failure]]
#: What to tell the caller of one call of a batch that has failed, by its place.
Describe = Callable[[int, BaseException], Failure]
#: Calls between two looks at the clock.
_CALLS_PER_LOOK: Final = 16


def reader(signature: Signature, codec: Codec) -> Callable[[Body], tuple[Header, Sequence[Any]]]:
    """Reads the header and each call's arguments; in the place of those that do not fit stands the rejection."""
    validate = signature.validator(codec)
    kinds = signature.positional_types
    decode = codec.decoder(tuple[Header, list[tuple.__class_getitem__(kinds)]])  # type: ignore[misc]
    loose = codec.decoder(tuple[Header, list[list[Any]]])

    def checked(args: list[Any]) -> Sequence[Any] | Rejected:
        try:
            positional, keywords = validate(args, {})
            assert not keywords
        except Rejected as error:
            return error
        return positional

    def read(body: Body) -> tuple[Header, Sequence[Any]]:
        try:
            return decode(body)  # type: ignore[no-any-return]
        except UNREADABLE:  # Not all have the most arguments, or some do not fit.
            pass
        try:
            header, calls = loose(body)
        except UNREADABLE as error:
            raise signature.unreadable(error) from None
        return header, [checked(args) for args in calls]

    return read


def mixed_reader(service: str, codec: Codec) -> Callable[[Body], tuple[Header, Sequence[Any]]]:
    """Reads the header and the calls of several endpoints, which are still to be checked."""
    decode = codec.decoder(tuple[Header, list[Any]])

    def read(body: Body) -> tuple[Header, Sequence[Any]]:
        try:
            return decode(body)  # type: ignore[no-any-return]
        except UNREADABLE as error:
            raise unreadable(f"{service}: the batch cannot be read", error) from None

    return read


async def call_each(function: Callable[..., Any], calls: Iterable[Any], describe: Describe) -> Outcomes:
    """Calls a plain function with each of the arguments, in a context for each; the loop has its turn now and then."""
    isolation = _core.Isolation(contextvars.copy_context())
    results: list[Any] = []
    failures: dict[int, Failure] = {}
    looks = 0
    _turns.wanted += 1
    try:
        slice_end = _turns.slice_end()
        for args in calls:
            isolation.renew()
            try:
                if type(args) is Rejected:
                    raise args
                results.append(function(*args))
            except BaseException as error:
                if is_for_the_program(error):
                    raise
                failures[len(results)] = describe(len(results), error)
                results.append(None)
            looks += 1
            if looks == _CALLS_PER_LOOK:
                looks = 0
                if time.monotonic() > slice_end:
                    isolation.leave()
                    await asyncio.sleep(0)
                    slice_end = _turns.slice_end()
    finally:
        isolation.leave()
        _turns.wanted -= 1
    return results, failures


class _Turns:
    """Batches under way: together they take one slice of a turn of the loop, so that many keep nobody waiting."""

    wanted = 0

    def slice_end(self) -> float:
        """When the turn of one of them is over."""
        return time.monotonic() + SLICE / self.wanted


_turns: Final = _Turns()


def sorted_out(results: list[Any], describe: Describe) -> Outcomes:
    """Results and exceptions apart."""
    failures: dict[int, Failure] = {}
    for index, result in enumerate(results):
        if isinstance(result, BaseException):
            failures[index] = describe(index, result)
            results[index] = None
    return results, failures


def encode_outcomes(
    runner: CallRunner, describe: Callable[[BaseException], Failure], results: list[Any], failures: dict[int, Failure]
) -> Encoded:
    """The body of the answer. A result that cannot be carried is a failure of its own."""
    try:
        return Encoded(runner.codec.encode_all((results, failures)))
    except Exception:
        for index, result in enumerate(results):
            try:
                runner.encode_result(f"call {index} of the batch", result)
            except Rejected as error:
                results[index] = None
                failures[index] = describe(error)
    return Encoded(runner.codec.encode_all((results, failures)))
