"""The declaration of an endpoint: its parameters, its result, and its streams."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import msgspec

from shmrpc.service import stream_types
from shmrpc.service.argument_errors import POSITIONAL_KINDS, short_repr
from shmrpc.values import can_be_writable, is_writable
from shmrpc.values.aliases import type_hints
from shmrpc.values.type_names import type_name
from shmrpc.wire.codec import check_type, get_codec
from shmrpc.wire.failure import CallRejected, unreadable_call


class Signature:
    """The parameters and the result of a function."""

    def __init__(self, service: str, endpoint: str, function: Callable[..., Any]) -> None:
        """Read a function's declaration. Raises TypeError for one that an endpoint cannot have."""
        self.endpoint = endpoint
        self.name = f"{service}.{endpoint}"
        try:
            self._read_declaration(function)
        except TypeError as error:
            raise TypeError(f"endpoint {self.name!r}: {error}") from None

    def _read_declaration(self, function: Callable[..., Any]) -> None:
        """Set the attributes from a function's declaration. Raises TypeError."""
        hints = _type_hints(function)
        signature = _inspect_signature(function)
        declared = [p.replace(annotation=hints.get(p.name, p.empty)) for p in signature.parameters.values()]
        result = hints.get("return", signature.empty)
        result = None if result is type(None) else result  # The notation of source code, for messages.
        self.signature = signature.replace(parameters=declared, return_annotation=result)
        #: Type of the result, or of each streamed item.
        self.result: Any = hints.get("return", Any)
        #: True if the endpoint streams to the caller.
        self.streams = stream_types.is_streaming(function, self.result)
        #: Item types of the parameters that take a stream from the caller, by name.
        self.inputs = {
            name: stream_types.input_item(hints[name])
            for name in self.signature.parameters
            if stream_types.is_input(hints.get(name))
        }
        declared_types = {name: hints.get(name, Any) for name in self.signature.parameters}
        self._check_streams(function, declared_types | self.inputs)
        if self.streams:
            self.result = stream_types.output_item(self.result)
        #: Types of the arguments by name. A stream has a nil in its place.
        self.types: dict[str, Any] = declared_types | dict.fromkeys(self.inputs)
        #: Names of the parameters whose memory the function writes in place.
        self.writable = frozenset(name for name, kind in self.types.items() if is_writable(kind))
        self._check_writable()
        for name, kind in (self.types | self.inputs).items():
            _check_type(f"parameter {name!r}", kind)
        if self.result is not Any:
            _check_type("the result", self.result)
        self._check_defaults()

    @property
    def input_positions(self) -> dict[str, int]:
        """Position of each stream among the positional arguments; -1 for keyword-only ones."""
        parameters = self.signature.parameters
        return {
            name: -1 if parameters[name].kind is Parameter.KEYWORD_ONLY else list(parameters).index(name)
            for name in self.inputs
        }

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters in their declared order."""
        return list(self.signature.parameters.values())

    @property
    def positional_names(self) -> list[str]:
        """Names of the parameters that accept positional arguments, without that of ``*args``."""
        return [p.name for p in self.parameters if p.kind in POSITIONAL_KINDS]

    def _check_streams(self, function: Callable[..., Any], types: dict[str, Any]) -> None:
        """Raise TypeError for a stream at a place where none can be, or to a function that is no ``async def``."""
        for parameter in self.parameters:
            stream_types.check_parameter(parameter, types[parameter.name])
        stream_types.check_result(function, self.result)
        if self.inputs and not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise TypeError(f"it takes a stream ({', '.join(self.inputs)}), so it must be an async def")

    def _check_defaults(self) -> None:
        """Raise TypeError for a default that would be rejected as an argument. Skips defaults that cannot be sent."""
        codec = get_codec("msgspec")
        for parameter in self.parameters:
            kind, default = self.types[parameter.name], parameter.default
            if default is parameter.empty or parameter.name in self.inputs or kind is Any:
                continue
            try:
                body = codec.encode(default)
                if type(body) is bytes:
                    codec.decoder(kind)(body)
            except msgspec.ValidationError:
                hint = f"declare {type_name(kind)} | None" if default is None else "one of the two is wrong"
                raise TypeError(
                    f"parameter {parameter.name!r} is declared as {type_name(kind)}, but its default is "
                    f"{short_repr(default)}: {hint}"
                ) from None
            except Exception:  # For example a sentinel object.
                continue

    def _check_writable(self) -> None:
        """Raise TypeError for ``Writable`` at a place other than a single parameter, or of what is never written to."""
        for name in self.writable:
            if self.signature.parameters[name].kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                raise TypeError(f"parameter {name!r} cannot be Writable: name each one")
            if not can_be_writable(kind := self.types[name]):
                raise TypeError(
                    f"parameter {name!r} is declared as {type_name(kind)}, which has no memory to write to: declare an "
                    "array or a memoryview"
                )
        if is_writable(self.result) or any(map(is_writable, self.inputs.values())):
            raise TypeError("Writable is for parameters, not for results or items of a stream")

    def unreadable_call(self, why: object) -> CallRejected:
        """Return the rejection of a body that does not hold valid arguments."""
        return unreadable_call(f"{self.name}(): the arguments cannot be read", why)

    def describe_mismatch(self, what: str, error: Exception, value: Any, kind: Any) -> str:
        """Return the message for a value that is not of its declared type."""
        why = str(error)
        why = f"{why[0].lower()}{why[1:]}"
        return f"{self.name}(): {what}: {why} ({short_repr(value)}); it is declared as {type_name(kind)}"


def result_type(function: Callable[..., Any]) -> Any:
    """Return the declared type of a function's result or streamed items; Any without a declaration.

    Raises TypeError for an annotation that cannot be resolved.
    """
    result = _type_hints(function).get("return", Any)
    return stream_types.output_item(result) if stream_types.is_streaming(function, result) else result


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the declared types of a function, also of a `functools.partial`; empty without annotations.

    Raises TypeError for an annotation that cannot be evaluated, such as one with a name that is not defined.
    """
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return type_hints(function) if hasattr(function, "__annotations__") else {}
    except NameError as error:
        raise TypeError(
            f"an annotation cannot be resolved: {error}. Import its types at run time, outside of `if TYPE_CHECKING` "
            "and of functions"
        ) from None
    except TypeError:
        raise
    except Exception as error:  # An annotation is an expression, which may raise anything.
        raise TypeError(f"an annotation cannot be resolved: {type(error).__name__}: {error}") from None


def _inspect_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function. Raises TypeError if Python does not know it."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        raise TypeError(
            f"Python does not know the arguments of {function!r}; call it in a def, and make that the endpoint"
        ) from None


def _check_type(what: str, kind: Any) -> None:
    """Raise TypeError for a declared type to which no value can be decoded."""
    try:
        check_type(kind)
    except (TypeError, RecursionError) as error:
        why = str(error) if isinstance(error, TypeError) else "a type in it is part of itself: declare Any there"
        raise TypeError(f"{what} is declared as {type_name(kind)}: {why}") from None
