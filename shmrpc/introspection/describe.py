"""Description of a service: its endpoints, their signatures and the classes in them."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, cast

import msgspec

from shmrpc.introspection.client_types import ClientTypes, TypeDescription
from shmrpc.introspection.type_facts import format_default
from shmrpc.service.endpoints import Endpoint, RunIn
from shmrpc.service.service import Service
from shmrpc.values.type_names import type_name

EndpointKind = Literal["unary", "server stream", "client stream", "bidirectional"]
ParameterKind = Literal["positional only", "positional or keyword", "var positional", "keyword only", "var keyword"]

_LINE_LENGTH: Final = 100


class ParameterDescription(msgspec.Struct, frozen=True):
    """Parameter of an endpoint."""

    name: str
    kind: ParameterKind
    #: Declared type.
    type: str
    #: Type that a client without the server's classes may send; for a stream, the type of each item.
    accepts: str
    required: bool = True
    #: Default as source code.
    default: str | None = None
    #: True if the parameter takes a stream.
    stream: bool = False


class EndpointDescription(msgspec.Struct, frozen=True):
    """Endpoint, with its parameters and its result."""

    name: str
    kind: EndpointKind
    parameters: list[ParameterDescription]
    #: Declared type of the result; for a stream, the type of each item.
    result: str
    #: Type of the result, or of an item, at a client without the server's classes.
    gives: str
    docstring: str = ""
    run_in: RunIn = "loop"

    @property
    def streams(self) -> bool:
        """True if the result is a stream."""
        return self.kind in ("server stream", "bidirectional")

    @property
    def text(self) -> str:
        """Signature, such as ``add(a: int, b: int = 2) -> int``; a long one on several lines."""
        result = f"stream of {self.result}" if self.streams else self.result
        return format_signature(
            self.name, format_parameters(self.parameters, _parameter_text), f" -> {result}", _LINE_LENGTH
        )


class Description(msgspec.Struct, frozen=True):
    """Service, with its endpoints and the classes in their types."""

    service: str
    endpoints: list[EndpointDescription]
    types: list[TypeDescription] = []

    @property
    def text(self) -> str:
        """Description as text, for people."""
        blocks = [f"{self.service}: {len(self.endpoints)} endpoint{'s' * (len(self.endpoints) != 1)}"]
        for endpoint in self.endpoints:
            where = "" if endpoint.run_in == "loop" else f"    [runs in a {endpoint.run_in}]"
            blocks.append(f"{endpoint.text}{where}\n{textwrap.indent(endpoint.docstring, ' ' * 4)}".rstrip())
        blocks.extend(_type_texts(self.types))
        return "\n\n".join(blocks)


def describe_service(service: Service) -> Description:
    """Return the description of a service as it is now. Blocks, and may take long for many types."""
    endpoints = list(service.endpoints.values())
    received = [endpoint.signature.result for endpoint in endpoints]
    sent = [kind for endpoint in endpoints for kind in _sent_types(endpoint).values()]
    types = ClientTypes(received, sent)
    return Description(service.name, [_describe_endpoint(each, types) for each in endpoints], types.definitions())


def _describe_endpoint(endpoint: Endpoint, types: ClientTypes) -> EndpointDescription:
    """Return the description of an endpoint, with types as ``types`` names them for clients."""
    signature, sent = endpoint.signature, _sent_types(endpoint)
    parameters = [
        ParameterDescription(
            each.name,
            cast("ParameterKind", each.kind.name.lower().replace("_", " ")),
            "Any" if each.annotation is each.empty else type_name(each.annotation),
            types.accepts(sent[each.name]),
            each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD),
            None if each.default is each.empty else format_default(each.default),
            each.name in signature.inputs,
        )
        for each in signature.signature.parameters.values()
    ]
    return EndpointDescription(
        endpoint.name,
        _endpoint_kind(streams=signature.streams, streams_in=bool(signature.inputs)),
        parameters,
        type_name(signature.result),
        types.gives(signature.result),
        inspect.getdoc(endpoint.function) or "",
        endpoint.run_in,
    )


def _sent_types(endpoint: Endpoint) -> dict[str, Any]:
    """Return the declared type of each parameter by name; for a stream, the type of its items."""
    signature = endpoint.signature
    annotations = {
        name: Any if each.annotation is each.empty else each.annotation
        for name, each in signature.signature.parameters.items()
    }
    return annotations | signature.inputs


def _endpoint_kind(*, streams: bool, streams_in: bool) -> EndpointKind:
    """Return the kind of an endpoint whose result streams (``streams``) or whose arguments do (``streams_in``)."""
    if streams:
        return "bidirectional" if streams_in else "server stream"
    return "client stream" if streams_in else "unary"


def format_parameters(
    parameters: Iterable[ParameterDescription], write: Callable[[ParameterDescription], str]
) -> Iterator[str]:
    """Yield the parameters of a signature, formatted by ``write``, with the markers ``/`` and ``*`` between them."""
    before: ParameterKind | None = None
    for each in parameters:
        if before == "positional only" and each.kind != before:
            yield "/"
        if each.kind == "keyword only" and before not in ("keyword only", "var positional"):
            yield "*"
        before = each.kind
        yield {"var positional": "*", "var keyword": "**"}.get(each.kind, "") + write(each)
    if before == "positional only":
        yield "/"


def format_signature(start: str, parameters: Iterable[str], end: str, length: int) -> str:
    """Return a signature on one line of at most ``length`` characters, or with a line for each parameter.

    These lines may be longer.
    """
    parameters = list(parameters)
    line = f"{start}({', '.join(parameters)}){end}"
    if len(line) <= length:
        return line
    return "\n".join([f"{start}(", *(f"    {each}," for each in parameters), f"){end}"])


def _parameter_text(each: ParameterDescription) -> str:
    """Return a parameter as source code, with its declared type and its default."""
    return f"{each.name}: {each.type}" + (f" = {each.default}" if each.default is not None else "")


def _type_texts(types: list[TypeDescription]) -> Iterable[str]:
    """Return the texts of all classes, without duplicates; a registered Struct may have a second text for sending."""
    arriving = {each.registered for each in types if each.received}
    only_sent = [not each.received and each.registered in arriving - {None} for each in types]
    return dict.fromkeys(map(_type_text, types, only_sent))


def _type_text(each: TypeDescription, only_sent: bool) -> str:
    """Return the lines for one class; ``only_sent`` marks its form as the one that may be sent."""
    kind = f"{each.kind}, registered as {each.registered!r}" if each.registered is not None else each.kind
    if each.kind == "enum":
        return f"{each.type} ({kind}): {each.gives}"
    fields = [
        f"{field.name}: {field.type}"
        + (f" = {field.default}" if field.default is not None else "" if field.required else " (may be left out)")
        for field in each.fields
    ]
    sent = " as it may be sent" * only_sent
    return "\n".join([f"{each.type} ({kind}){sent}", *(f"    {field}" for field in fields)])
