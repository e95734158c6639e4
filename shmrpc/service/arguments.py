"""The arguments of a call: decoded from its body, and validated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final, NoReturn

import msgspec

from shmrpc import _core
from shmrpc.service.argument_errors import POSITIONAL_KINDS, describe_argument_errors
from shmrpc.service.signature import Signature
from shmrpc.values.blocks import Unmapped
from shmrpc.wire.codec import UNREADABLE, Body, Codec, UndeclaredArray, require_converted
from shmrpc.wire.failure import CallRejected
from shmrpc.wire.frames import sub_body

#: Positional arguments and keyword arguments.
Arguments = tuple[Sequence[Any], Mapping[str, Any]]

#: First byte of a MessagePack array of up to 15 elements, without the number of elements.
_FIXARRAY: Final = 0x90
_PAIR: Final = b"\x92"
_EMPTY_MAP: Final = b"\x80"


class ArgumentDecoders:
    """Decoders that validate the arguments of an endpoint. Each raises CallRejected for invalid or unreadable ones.

    The rejection names the parameter, the expected type and the value found.
    """

    def __init__(self, signature: Signature, codec: Codec) -> None:
        self._signature = signature
        self._codec = codec
        #: Decodes an array of positional arguments.
        self.positional = self._array_decoder(self._explain)
        #: Decodes an array of a deadline and positional arguments, and returns the deadline first.
        self.with_deadline = self._array_decoder(self._explain_with_deadline, int)
        #: Decodes an array of positional arguments and a map of keyword arguments.
        self.keywords = self._keyword_decoder()

    def decode_parts(self, body: Body, args: msgspec.Raw, kwargs: msgspec.Raw) -> Arguments:
        """Decode an array of positional and a map of keyword arguments that are parts of a body."""
        if bytes(kwargs) == _EMPTY_MAP:
            return self.positional(sub_body(body, args)), {}
        return self.keywords(sub_body(body, b"".join((_PAIR, args, kwargs))))

    def expected_by_count(self) -> list[_core.ExpectedType | None]:
        """Return the core's type of an array of positional arguments, by its length; None where the core has none.

        The list ends before the first length of 16, and is empty with a required keyword-only parameter.
        """
        return [None if kind is None else self._codec.expected(kind) for kind in self._kinds_by_count(())]

    def expected_by_name(self) -> tuple[list[tuple[str, _core.ExpectedType, bool]], int]:
        """Return the name, the core's type and True if required of each parameter, and the number of positional ones.

        Returns no parameters, and 0, if the core cannot decode one of them, or if one is positional only or variadic.
        """
        parameters, types = self._signature.parameters, self._signature.types
        found = [
            (each.name, expected, each.default is each.empty)
            for each in parameters
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
            and (expected := self._codec.expected(types[each.name])) is not None
        ]
        if len(found) < len(parameters):
            return [], 0
        return found, sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)

    def _array_decoder(self, explain: Callable[[Body], Sequence[Any]], *before: Any) -> Callable[[Body], Sequence[Any]]:
        """Return a decoder of arrays of arguments, which tries the quick decoder for their number, then a complete one.

        ``explain`` is the slow path, which raises the rejection. ``before``: types of values before the arguments.
        """
        codec, kinds = self._codec, self._kinds_by_count(before)
        quick = [_raise_no_decoder if kind is None else codec.quick_decoder(kind) for kind in kinds]
        #: Complete decoders by length, created when first needed.
        complete: dict[int, Callable[[Body], Any]] = {}

        def decode(body: Body) -> Sequence[Any]:
            try:
                return quick[body[0] ^ _FIXARRAY](body)  # type: ignore[index, no-any-return]
            except (*UNREADABLE, IndexError, TypeError):  # TypeError: the body is a parcel.
                pass
            encoded = body if isinstance(body, bytes) else body.body
            count = encoded[0] ^ _FIXARRAY if encoded else len(kinds)
            if count >= len(kinds) or kinds[count] is None:
                return explain(body)
            if count not in complete:
                complete[count] = codec.decoder(kinds[count])
            try:
                return complete[count](body)  # type: ignore[no-any-return]
            except UNREADABLE:
                pass
            return explain(body)

        return decode

    def _kinds_by_count(self, before: tuple[Any, ...]) -> list[Any]:
        """Return the type of an array of up to 15 values, by its length; None for invalid lengths."""
        parameters, types = self._signature.parameters, self._signature.types
        positional = [p for p in parameters if p.kind in POSITIONAL_KINDS]
        required = sum(p.default is p.empty for p in positional)
        if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
            return []
        rest = next((types[p.name] for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        by_count: list[Any] = [None for _ in before]
        for count in range(16 - len(before)):
            kinds = [types[p.name] for p in positional[:count]]
            if count > len(positional) and rest is not None:
                kinds += [rest] * (count - len(positional))
            fits = required <= count == len(kinds)
            by_count.append(tuple.__class_getitem__((*before, *kinds)) if fits else None)
        return by_count

    def _explain(self, body: Body) -> Sequence[Any]:
        """Decode positional arguments on the slow path. Raises CallRejected with the reason."""
        try:
            arguments, has_foreign = self._codec.decode_for_conversion(body)
        except UNREADABLE as error:
            raise self._signature.unreadable_call(error) from None
        if not isinstance(arguments, list):
            raise CallRejected(
                "arguments", f"{self._signature.name}(): expected an array of arguments, got {type(arguments).__name__}"
            )
        return self._bind(arguments, {}, has_foreign)[0]

    def _explain_with_deadline(self, body: Body) -> Sequence[Any]:
        """Decode a deadline and positional arguments on the slow path. Raises CallRejected with the reason."""
        try:
            (deadline, *positional), has_foreign = self._codec.decode_for_conversion(body)
            if type(deadline) is not int:
                raise TypeError
        except Unmapped as error:
            raise self._signature.unreadable_call(error) from None
        except (*UNREADABLE, TypeError, ValueError):
            raise self._signature.unreadable_call("expected an array that begins with a deadline") from None
        return deadline, *self._bind(positional, {}, has_foreign)[0]

    def _keyword_decoder(self) -> Callable[[Body], Arguments]:
        """Return a decoder that decodes without types, then converts each value to the type of its parameter."""
        by_count, types, convert = self._keywords_by_count(), self._signature.types, self._codec.convert
        names, shape = list(types), self._codec.decoder(tuple[list[Any], dict[str, Any]])

        def decode(body: Body) -> Arguments:
            try:
                positional, keywords = shape(body)
            except UndeclaredArray:
                positional, keywords = self._codec.decode_for_conversion(body)[0]
                return self._bind(positional, keywords, has_foreign=True)
            except UNREADABLE as error:
                raise self._signature.unreadable_call(error) from None
            try:
                allowed, required = by_count[len(positional)]
                if required <= keywords.keys() <= allowed:
                    converted = [convert(v, types[name]) for name, v in zip(names, positional, strict=False)]
                    return converted, {name: convert(value, types[name]) for name, value in keywords.items()}
            except (*UNREADABLE, IndexError):
                pass
            return self._bind(positional, keywords)  # The slow path raises the rejection.

        return decode

    def _keywords_by_count(self) -> list[tuple[frozenset[str], frozenset[str]]]:
        """Return the allowed and the required keywords, by the number of positional arguments.

        Returns an empty list for parameters of a kind that only the slow path supports.
        """
        parameters = self._signature.parameters
        if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
            return []
        return [
            (
                frozenset(p.name for p in parameters[count:]),
                frozenset(p.name for p in parameters[count:] if p.default is p.empty),
            )
            for count in range(sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) + 1)
        ]

    def _bind(self, positional: Sequence[Any], keywords: Mapping[str, Any], has_foreign: bool = False) -> Arguments:
        """Bind arguments to parameters as Python does, and validate each. Raises CallRejected.

        With ``has_foreign``, reject arrays of other libraries that were not converted, too.
        """
        signature = self._signature
        try:
            bound = signature.signature.bind(*positional, **keywords)
        except TypeError as error:
            why = describe_argument_errors(signature.endpoint, signature.signature, positional, keywords) or str(error)
            raise CallRejected("arguments", f"{signature.name}{signature.signature}: {why}") from None
        for name, value in bound.arguments.items():
            kind = signature.types[name]
            match signature.signature.parameters[name].kind:
                case Parameter.VAR_POSITIONAL:
                    value = tuple(self._convert(f"{name}[{i}]", each, kind) for i, each in enumerate(value))
                case Parameter.VAR_KEYWORD:
                    value = {key: self._convert(key, each, kind) for key, each in value.items()}
                case _:
                    value = self._convert(name, value, kind)
            if has_foreign:
                self._require_converted(name, value)
            bound.arguments[name] = value
        return bound.args, bound.kwargs

    def _require_converted(self, parameter: str, value: Any) -> None:
        """Raise CallRejected if a value contains an array of another library that was not converted."""
        try:
            require_converted(value)
        except UndeclaredArray as error:
            raise CallRejected("arguments", f"{self._signature.name}(): parameter {parameter!r}: {error}") from None

    def _convert(self, parameter: str, value: Any, kind: Any) -> Any:
        """Convert a decoded value to its declared type. Raises CallRejected."""
        if kind is Any:
            return value
        try:
            return self._codec.convert(value, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise CallRejected(
                "arguments", self._signature.describe_mismatch(f"parameter {parameter!r}", error, value, kind)
            ) from None


def _raise_no_decoder(body: Body) -> NoReturn:
    """Raise IndexError, as for a length without a decoder."""
    raise IndexError
