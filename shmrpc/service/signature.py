"""An endpoint's parameters: arguments decoded, validated, and explained where they do not fit."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from shmrpc.basics.spelling import closest
from shmrpc.service import stream_types
from shmrpc.values import is_writable
from shmrpc.values.aliases import type_hints
from shmrpc.values.blocks import Unmapped
from shmrpc.values.type_names import type_name
from shmrpc.wire.codec import UNREADABLE, Body, Codec, check_type, encode_inline, get_codec
from shmrpc.wire.frames import Rejected, unreadable

Parameter = inspect.Parameter
Arguments = tuple[Sequence[Any], Mapping[str, Any]]
Decode = Callable[[Body], Any]

#: The first byte of a MessagePack array of up to 15 elements is this one plus their number.
_FIXARRAY = 0x90
#: What a client's ``with_options`` takes. Many try them as keywords of a call.
CALL_OPTIONS: Final = ("timeout", "metadata", "reply_metadata")
_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 60


class Signature:
    """The parameters of a function, and what it gives back."""

    def __init__(self, service: str, endpoint: str, function: Callable[..., Any]) -> None:
        self.endpoint = endpoint
        self.name = name = f"{service}.{endpoint}"
        hints = _hints(name, function)
        signature = _signature(name, function)
        declared = [p.replace(annotation=hints.get(p.name, p.empty)) for p in signature.parameters.values()]
        result = hints.get("return", signature.empty)
        result = None if result is type(None) else result  # As it is written, for messages.
        self.signature = signature.replace(parameters=declared, return_annotation=result)
        #: The type of its result, or of each item that it streams.
        self.result: Any = hints.get("return", Any)
        #: Whether it streams to the caller.
        self.streams = stream_types.streams(function, self.result)
        #: The parameters that take a stream from the caller, and the type of an item of each.
        self.inputs = {
            p: stream_types.input_item(hints[p])
            for p in self.signature.parameters
            if stream_types.is_input(hints.get(p))
        }
        self._types = {p: hints.get(p, Any) for p in self.signature.parameters}
        self._check_streams(function)
        if self.streams:
            self.result = stream_types.output_item(self.result)
        #: In their place among the arguments stands a nil.
        self._types |= dict.fromkeys(self.inputs)
        #: The parameters whose memory the function writes in place.
        self.writable = frozenset(p for p, kind in self._types.items() if is_writable(kind))
        self._check_writable()
        for parameter, kind in (self._types | self.inputs).items():
            _check_type(name, f"parameter {parameter!r}", kind)
        if self.result is not Any:
            _check_type(name, "the result", self.result)
        self._check_defaults()

    @property
    def input_places(self) -> dict[str, int]:
        """The place of each stream among the positional arguments; -1 if it can come by keyword alone."""
        parameters = self.signature.parameters
        return {
            name: -1 if parameters[name].kind is Parameter.KEYWORD_ONLY else list(parameters).index(name)
            for name in self.inputs
        }

    @property
    def positional_names(self) -> list[str]:
        """The parameters that can come in order."""
        return [p.name for p in self.signature.parameters.values() if p.kind in _BY_PLACE]

    @property
    def positional_types(self) -> tuple[Any, ...]:
        """The types of the parameters that can come in order."""
        return tuple(self._types[name] for name in self.positional_names)

    def _check_streams(self, function: Callable[..., Any]) -> None:
        try:
            for parameter in self.signature.parameters.values():
                stream_types.check_parameter(parameter, (self._types | self.inputs)[parameter.name])
            stream_types.check_result(function, self.result)
        except TypeError as error:
            raise TypeError(f"endpoint {self.name!r}: {error}") from None
        if self.inputs and not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise TypeError(
                f"endpoint {self.name!r}: it takes a stream ({', '.join(self.inputs)}), so it must be an async def"
            )

    def _check_defaults(self) -> None:
        """TypeError for a default that would be refused if a caller sent it. What nobody can send is not looked at."""
        codec = get_codec("msgspec")
        for parameter in self.signature.parameters.values():
            kind, default = self._types[parameter.name], parameter.default
            if default is parameter.empty or parameter.name in self.inputs or kind is Any:
                continue
            try:
                body = codec.encode(default)
                if type(body) is bytes:
                    codec.decoder(kind)(body)
            except msgspec.ValidationError:
                hint = f"declare {type_name(kind)} | None" if default is None else "one of the two is wrong"
                raise TypeError(
                    f"endpoint {self.name!r}: parameter {parameter.name!r} is declared as {type_name(kind)}, but its "
                    f"default is {_shown(default)}: {hint}"
                ) from None
            except Exception:  # As an object that says "not given".
                continue

    def _check_writable(self) -> None:
        for name in self.writable:
            if self.signature.parameters[name].kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                raise TypeError(f"endpoint {self.name!r}: parameter {name!r} cannot be Writable: name each one")
        if is_writable(self.result) or any(map(is_writable, self.inputs.values())):
            raise TypeError(f"endpoint {self.name!r}: Writable is for parameters, not for results or items of a stream")

    def positional_decoder(self, codec: Codec) -> Callable[[Body], Sequence[Any]]:
        """Decodes and validates an array of positional arguments.

        A rejection says which parameter, what was expected and what came.
        """

        def explain(body: Body) -> Sequence[Any]:
            positional, keywords = self._bind(codec, _array(self.name, codec, body), {})
            assert not keywords
            return positional

        return self._array_decoder(codec, explain)

    def keyword_decoder(self, codec: Codec) -> Callable[[Body], Arguments]:
        """Decodes and validates an array of positional arguments and a map of keyword arguments."""
        shape = codec.decoder(tuple[list[Any], dict[str, Any]])
        validate = self.validator(codec)

        def decode(body: Body) -> Arguments:
            try:
                positional, keywords = shape(body)
            except UNREADABLE as error:
                raise self.unreadable(error) from None
            return validate(positional, keywords)

        return decode

    def deadline_decoder(self, codec: Codec) -> Callable[[Body], Sequence[Any]]:
        """Decodes and validates an array of a deadline and positional arguments; the deadline stands first."""

        def explain(body: Body) -> Sequence[Any]:
            try:
                deadline, *positional = codec.decode(body)
                if type(deadline) is not int:
                    raise TypeError
            except Unmapped as error:
                raise self.unreadable(error) from None
            except (*UNREADABLE, TypeError, ValueError):
                raise self.unreadable("expected an array that begins with a deadline") from None
            return deadline, *self._bind(codec, positional, {})[0]

        return self._array_decoder(codec, explain, int)

    def _array_decoder(
        self, codec: Codec, explain: Callable[[Body], Sequence[Any]], *before: Any
    ) -> Callable[[Body], Sequence[Any]]:
        """Decodes a short array of arguments by its length: quickly, or else completely.

        ``explain`` is the slow way, which finds the words for what is wrong; ``before``: the types of what stands
        before the arguments.
        """
        kinds = self._kinds_by_count(before)
        quick = [_refuse if kind is None else codec.quick(kind) for kind in kinds]
        #: Made when they are first needed.
        complete: dict[int, Decode] = {}

        def decode(body: Body) -> Sequence[Any]:
            try:
                return quick[body[0] ^ _FIXARRAY](body)  # type: ignore[index, no-any-return]
            except (*UNREADABLE, IndexError, TypeError):  # TypeError: it is a parcel.
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

    def validator(self, codec: Codec) -> Callable[[Sequence[Any], Mapping[str, Any]], Arguments]:
        """Validates positional and keyword arguments that have been decoded."""
        by_count = self._keywords_by_count()
        names, types, convert = list(self._types), self._types, codec.convert

        def validate(positional: Sequence[Any], keywords: Mapping[str, Any]) -> Arguments:
            try:
                allowed, required = by_count[len(positional)]
                if required <= keywords.keys() <= allowed:
                    converted = [convert(v, types[name]) for name, v in zip(names, positional, strict=False)]
                    return converted, {name: convert(value, types[name]) for name, value in keywords.items()}
            except (*UNREADABLE, IndexError):
                pass
            return self._bind(codec, positional, keywords)  # The slow way finds the words for what is wrong.

        return validate

    def unreadable(self, why: object) -> Rejected:
        """The rejection of a body that is not what a call's has to be."""
        return unreadable(f"{self.name}(): the arguments cannot be read", why)

    def _keywords_by_count(self) -> list[tuple[frozenset[str], frozenset[str]]]:
        """For each number of positional arguments, the keywords that may and that must be there.

        Empty if there are parameters of a kind that only the slow way knows.
        """
        parameters = list(self.signature.parameters.values())
        if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
            return []
        positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        return [
            (
                frozenset(p.name for p in parameters[count:]),
                frozenset(p.name for p in parameters[count:] if p.default is p.empty),
            )
            for count in range(positional + 1)
        ]

    def _kinds_by_count(self, before: tuple[Any, ...]) -> list[Any]:
        """The type of the array for each length that a short one can have; None for those that do not fit."""
        parameters = list(self.signature.parameters.values())
        positional = [p for p in parameters if p.kind in _BY_PLACE]
        required = sum(p.default is p.empty for p in positional)
        if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
            return []
        rest = next((self._types[p.name] for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        by_count: list[Any] = [None for _ in before]
        for count in range(16 - len(before)):
            kinds = [self._types[p.name] for p in positional[:count]]
            if count > len(positional) and rest is not None:
                kinds += [rest] * (count - len(positional))
            fits = required <= count == len(kinds)
            by_count.append(tuple.__class_getitem__((*before, *kinds)) if fits else None)
        return by_count

    def _bind(self, codec: Codec, positional: Sequence[Any], keywords: Mapping[str, Any]) -> Arguments:
        """Arguments to parameters as Python does it, each validated."""
        try:
            bound = self.signature.bind(*positional, **keywords)
        except TypeError as error:
            why = _misfit(self.endpoint, self.signature, positional, keywords) or str(error)
            raise Rejected("arguments", f"{self.name}{self.signature}: {why}") from None
        for name, value in bound.arguments.items():
            kind = self._types[name]
            match self.signature.parameters[name].kind:
                case Parameter.VAR_POSITIONAL:
                    value = tuple(self._convert(codec, f"{name}[{i}]", v, kind) for i, v in enumerate(value))
                case Parameter.VAR_KEYWORD:
                    value = {key: self._convert(codec, key, v, kind) for key, v in value.items()}
                case _:
                    value = self._convert(codec, name, value, kind)
            bound.arguments[name] = value
        return bound.args, bound.kwargs

    def _convert(self, codec: Codec, parameter: str, value: Any, kind: Any) -> Any:
        if kind is Any:
            return value
        try:
            return codec.convert(value, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise Rejected("arguments", self._unfit(f"parameter {parameter!r}", error, value, kind)) from None

    def _unfit(self, what: str, error: Exception, value: Any, kind: Any) -> str:
        """The words for a value that is not of its declared type."""
        why = str(error)
        return (
            f"{self.name}(): {what}: {why[0].lower()}{why[1:]} ({_shown(value)}); it is declared as {type_name(kind)}"
        )

    def result_check(self, codec: Codec) -> Callable[[Any], None] | None:
        """Raises a rejection for a result, or an item that it streams, of another type; None if none is declared.

        It looks at what a caller would get. So it takes as long as encoding and decoding.
        """
        if self.result is Any:
            return None
        kind, decode, what = self.result, codec.decoder(self.result), "an item" if self.streams else "the result"

        def check(value: Any) -> None:
            try:
                body = codec.encode(value)
            except Exception:  # To be told of when it is encoded to be sent.
                return
            try:
                if isinstance(body, bytes):
                    decode(body)
                else:
                    _check_large(codec, value, kind, decode)
            except (*UNREADABLE, RecursionError) as error:
                raise Rejected("encode", self._unfit(what, error, value, kind)) from None

        return check


def _shown(value: Any) -> str:
    try:
        return _repr.repr(value)
    except Exception as error:  # As for an int of many thousand digits, or a __repr__ that fails.
        return f"<{type(value).__qualname__}, whose repr raised {type(error).__name__}>"


def _misfit(endpoint: str, signature: inspect.Signature, positional: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """All that is wrong with arguments that cannot be bound to parameters."""
    parameters = signature.parameters.values()
    by_place = [p.name for p in parameters if p.kind in _BY_PLACE]
    by_name = [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    given = {*by_place[: len(positional)], *keywords}
    missing = [
        p.name
        for p in parameters
        if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        and p.default is p.empty
        and (p.name not in given or (p.kind is Parameter.POSITIONAL_ONLY and p.name not in by_place[: len(positional)]))
    ]
    wrong = []
    if len(positional) > len(by_place) and all(p.kind is not Parameter.VAR_POSITIONAL for p in parameters):
        wrong.append(f"too many positional arguments: expected {_up_to(len(by_place))}, got {len(positional)}")
    wrong += [f"multiple values for argument {n!r}" for n in by_place[: len(positional)] if n in keywords]
    if all(p.kind is not Parameter.VAR_KEYWORD for p in parameters):
        options = {}
        for keyword, value in keywords.items():
            if keyword in by_name or keyword in by_place[: len(positional)]:
                continue
            if keyword in by_place:
                wrong.append(f"argument {keyword!r} is taken by its place, not by keyword")
                missing = [each for each in missing if each != keyword]
                continue
            free = [each for each in by_name if each not in given]
            meant = closest(keyword, free)
            if meant is None and keyword in CALL_OPTIONS:
                options[keyword] = value
            elif meant is None and len(missing) == 1 and missing[0] in free:
                meant = missing[0]
            missing = [each for each in missing if each != meant]
            wrong.append(f"unexpected keyword argument {keyword!r}" + (f"; did you mean {meant!r}?" if meant else ""))
        if options:
            others = {keyword: value for keyword, value in keywords.items() if keyword not in options}
            call = f"client.with_options({_written((), options)}).{endpoint}({_written(positional, others)})"
            wrong.append(f"an option of the call is given as {call}")
    if missing:
        plural = "s" * (len(missing) > 1)
        wrong.append(f"missing {'a ' * (not plural)}required argument{plural}: {', '.join(map(repr, missing))}")
    return "; ".join(wrong)


def _written(positional: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """Arguments as they stand in a call."""
    return ", ".join([*map(_shown, positional), *(f"{name}={_shown(value)}" for name, value in keywords.items())])


def _up_to(most: int) -> str:
    return f"up to {most}" if most else "none"


def result_type(function: Callable[..., Any]) -> Any:
    """What a function declares as its result, or as the items that it streams; Any if it does not."""
    result = _type_hints(function).get("return", Any)
    return stream_types.output_item(result) if stream_types.streams(function, result) else result


def _check_large(codec: Codec, value: Any, kind: Any, decode: Decode) -> None:
    """One of UNREADABLE for a value with large buffers that is of another type. They are copied only to find that."""
    try:
        codec.convert(value, kind)
    except msgspec.ValidationError:  # Which it may be as it stands, and not as it arrives.
        decode(encode_inline(value))


def _refuse(body: Body) -> NoReturn:
    raise IndexError


def _array(name: str, codec: Codec, body: Body) -> list[Any]:
    try:
        arguments = codec.decode(body)
    except UNREADABLE as error:
        raise unreadable(f"{name}(): the arguments cannot be read", error) from None
    if not isinstance(arguments, list):
        raise Rejected("arguments", f"{name}(): expected an array of arguments, got {type(arguments).__name__}")
    return arguments


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return _type_hints(function)
    except NameError as error:
        raise TypeError(
            f"endpoint {name!r}: an annotation cannot be resolved: {error}. Types of an endpoint must exist at "
            "run time: import them outside of `if TYPE_CHECKING`, and not inside a function"
        ) from None


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types that it declares; of a `functools.partial` those of its function, none of what has no annotations."""
    while isinstance(function, functools.partial):
        function = function.func
    return type_hints(function) if hasattr(function, "__annotations__") else {}


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        raise TypeError(
            f"endpoint {name!r}: Python does not tell which arguments {function!r} takes; "
            "call it in a def of yours, and make that the endpoint"
        ) from None


def _check_type(name: str, what: str, kind: Any) -> None:
    try:
        check_type(kind)
    except (TypeError, RecursionError) as error:
        why = str(error) if isinstance(error, TypeError) else "a type in it is part of itself: declare Any there"
        raise TypeError(f"endpoint {name!r}: {what} is declared as {type_name(kind)}: {why}") from None
