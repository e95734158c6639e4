"""A service's description as a ``.pyi`` file, for type checkers of clients without the server's source."""

from __future__ import annotations

import ast
import dataclasses
import keyword
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from shmrpc import sync
from shmrpc.client.aio.client import Client
from shmrpc.introspection.client_types import FieldDescription, TypeDescription
from shmrpc.introspection.describe import (
    Description,
    EndpointDescription,
    ParameterDescription,
    format_parameters,
    format_signature,
)

#: The modules of the names in the texts of types.
_SOURCES: Final[dict[str, str]] = {
    **dict.fromkeys(["AbstractSet", "AsyncGenerator", "AsyncIterable", "Collection", "Generator"], "collections.abc"),
    **dict.fromkeys(["Iterable", "Mapping", "MutableSequence", "Sequence"], "collections.abc"),
    **dict.fromkeys(["Any", "Literal", "NotRequired", "TypeAlias", "TypedDict"], "typing"),
    "EndpointGroup": "shmrpc.client.common.endpoint_group",
    "ReadOnly": "typing_extensions",
}
_LINE_LENGTH: Final = 120
#: Libraries that may be without types; mypy then has something to ignore.
_UNTYPED: Final = {"pyarrow": "  # type: ignore[import-untyped, unused-ignore]"}

_HEADER: Final = """\
# Clients of the service {service!r}, for type checkers. Written by `shmrpc stub {service}`: do not edit it.
#
# Values have the types in which they arrive without the server's classes: a dataclass is a dict, and in its fields
# a set may be a list, and a UUID a str.
# Save this as {module}.pyi where your checker looks for modules. There is no such module at run time, so:
#
#     from typing import TYPE_CHECKING, cast
#     import shmrpc
#     if TYPE_CHECKING:
#         from {module} import {client}, {sync_client}
#
#     async with cast("{client}", shmrpc.connect({service!r})) as client: ...
#     with cast("{sync_client}", shmrpc.sync.connect({service!r})) as client: ...
"""


@dataclasses.dataclass
class _Node:
    """A client, or a group of its endpoints."""

    endpoints: dict[str, EndpointDescription] = dataclasses.field(default_factory=dict)
    groups: dict[str, _Node] = dataclasses.field(default_factory=dict)


class _Names:
    """Names of types in the bodies of classes, where the name of an endpoint may hide a type."""

    def __init__(self, endpoints: Iterable[EndpointDescription]) -> None:
        self._hiding = {part for endpoint in endpoints for part in endpoint.name.split(".")}
        #: Aliases of the names that are hidden somewhere.
        self.aliases: dict[str, str] = {}

    def unhide(self, text: str) -> str:
        """Return the text of a type for the body of a class, with aliases for the names that endpoints hide.

        Adds them to ``aliases``, whose definitions the stub must contain.
        """
        tree = ast.parse(text, mode="eval")
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        hidden = [node for node in names if node.id in self._hiding]
        for node in hidden:
            node.id = self.aliases.setdefault(node.id, f"_the_{node.id}")
        return ast.unparse(tree) if hidden else text


def stub_text(description: Description) -> str:
    """Return the stub of the two clients of a service, for an event loop and for threads."""
    taken = {name for each in description.types for name in (each.name, each.input_name)}
    base = _camel_case(description.service)
    client, sync_client = _make_unique(f"{base}Client", taken), _make_unique(f"{base}SyncClient", taken)
    names = _Names(description.endpoints)
    definitions = [line for each in description.types for line in _class_definitions(each)]
    clients = [
        *_client_class(client, description, names, in_loop=True),
        "",
        *_client_class(sync_client, description, names, in_loop=False),
    ]
    module = f"{re.sub(r'[^a-z0-9]+', '_', description.service.lower())}_client"
    header = _HEADER.format(service=description.service, module=module, client=client, sync_client=sync_client)
    hidden = [*(f"{alias} = {name}" for name, alias in names.aliases.items()), "", "class _NoSuchEndpoint: ...", ""]
    body = [*definitions, *hidden, *clients]
    return (
        "\n".join([header, *_imports(set(re.findall(r"\w+", "\n".join(body))), _named_modules(description)), "", *body])
        + "\n"
    )


def _named_modules(description: Description) -> set[str]:
    """Return the modules that the texts of types name."""
    endpoints = [text for each in description.endpoints for text in (each.gives, *(p.accepts for p in each.parameters))]
    classes = [text for each in description.types for text in (each.gives, each.accepts) if text is not None]
    fields = [text for each in description.types for field in each.fields for text in (field.gives, field.accepts)]
    nodes = (node for text in {*endpoints, *classes, *fields} for node in ast.walk(ast.parse(text, mode="eval")))
    return {ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute)}


def _imports(used: set[str], modules: set[str]) -> list[str]:
    """Return import statements for the names that are used, and for the modules."""
    by_module: dict[str, list[str]] = {}
    for name in sorted(used & _SOURCES.keys()):
        by_module.setdefault(_SOURCES[name], []).append("Set as AbstractSet" if name == "AbstractSet" else name)
    return [
        *(f"import {name}{_UNTYPED.get(name, '')}" for name in sorted({"shmrpc", *modules})),
        *(f"from {module} import {', '.join(names)}" for module, names in sorted(by_module.items())),
    ]


def _group_endpoints(endpoints: Iterable[EndpointDescription], client: type[object]) -> tuple[_Node, list[str]]:
    """Return the endpoints by groups, and the names of endpoints that cannot be attributes of a client."""
    root, left_out = _Node(), []
    for endpoint in endpoints:
        *groups, last = endpoint.name.split(".")
        first = groups[0] if groups else last
        if any(map(keyword.iskeyword, (*groups, last))) or hasattr(client, first):
            left_out.append(endpoint.name)
            continue
        node = root
        for group in groups:
            node = node.groups.setdefault(group, _Node())
        node.endpoints[last] = endpoint
    return root, left_out


def _class_definitions(each: TypeDescription) -> Iterator[str]:
    """Yield the TypedDict or the alias of a class; two of them if its type differs between sending and receiving."""
    if each.received:
        yield from _class_definition(each, each.name, as_input=False)
    if each.sent and (each.input_name != each.name or not each.received):
        yield from _class_definition(each, each.input_name, as_input=True)


def _class_definition(each: TypeDescription, name: str, *, as_input: bool) -> Iterator[str]:
    """Yield the definition of a class for sending or for receiving."""
    plain = each.accepts if as_input else each.gives
    if plain is not None:
        yield from (f"{name}: TypeAlias = {plain}", "")
        return
    fields = {field.name: _field_type(field, as_input=as_input) for field in each.fields}
    if any(_needs_quotes(field, fields) for field in fields):
        items = ", ".join(f"{field!r}: {text}" for field, text in fields.items())
        yield from (f"{name} = TypedDict({name!r}, {{{items}}})", "")
        return
    yield f"class {name}(TypedDict):" + (" ..." if not fields else "")
    yield from (f"    {field}: {text}" for field, text in fields.items())
    yield ""


def _needs_quotes(field: str, fields: Mapping[str, str]) -> bool:
    """Return True if the name of a field is not valid in the body of a class, or hides a type there."""
    hides = any(re.search(rf"\b{re.escape(field)}\b", text) for text in fields.values())
    return not field.isidentifier() or keyword.iskeyword(field) or field.startswith("__") or hides


def _field_type(field: FieldDescription, *, as_input: bool) -> str:
    """Return the type of a field, with its qualifiers."""
    # A read-only field of a wider type also accepts values of a narrower type.
    text = f"ReadOnly[{field.accepts}]" if as_input else field.gives
    is_always_present = field.required if as_input else field.always
    return text if is_always_present else f"NotRequired[{text}]"


def _client_class(name: str, description: Description, names: _Names, *, in_loop: bool) -> Iterator[str]:
    """Yield the lines of the class of a client."""
    root, left_out = _group_endpoints(description.endpoints, Client if in_loop else sync.Client)
    yield f"class {name}({'shmrpc.Client' if in_loop else 'shmrpc.sync.Client'}):"
    yield from (
        f'    # client.call("{endpoint}", ...): its name is a word of Python\'s or a method of every client.'
        for endpoint in left_out
    )
    yield from _class_body(root, names, in_loop=in_loop)


def _class_body(node: _Node, names: _Names, *, in_loop: bool) -> Iterator[str]:
    """Yield the body of the class of a client or a group."""
    for name, endpoint in node.endpoints.items():
        yield textwrap.indent(_method(name, endpoint, names, in_loop=in_loop), "    ")
    for name, group in node.groups.items():
        yield f"    class _{name}_group({names.unhide('EndpointGroup')}):"  # No endpoint has such a name.
        yield from (textwrap.indent(lines, "    ") for lines in _class_body(group, names, in_loop=in_loop))
        yield f"    {name}: _{name}_group"
    yield f"    def __getattr__(self, name: {names.unhide('str')}) -> _NoSuchEndpoint: ..."


def _method(name: str, endpoint: EndpointDescription, names: _Names, *, in_loop: bool) -> str:
    """Return the text of the method of an endpoint."""
    gives = names.unhide(endpoint.gives)
    if endpoint.streams:
        gives = names.unhide(f"AsyncGenerator[{gives}, None]" if in_loop else f"Generator[{gives}, None, None]")
    start = f"async def {name}" if in_loop and not endpoint.streams else f"def {name}"
    parameters = _parameters(endpoint.parameters, names, in_loop=in_loop)
    end = f" -> {gives}:" + ("" if endpoint.docstring else " ...")
    signature = format_signature(start, parameters, end, _LINE_LENGTH - 4)
    if not endpoint.docstring:
        return signature
    lines = endpoint.docstring + "\n" * ("\n" in endpoint.docstring)
    return f"{signature}\n{textwrap.indent(ast.unparse(ast.Module([ast.Expr(ast.Constant(lines))], [])), ' ' * 4)}"


def _parameters(parameters: list[ParameterDescription], names: _Names, *, in_loop: bool) -> Iterator[str]:
    """Yield the parameters of a method, with the markers between their kinds."""

    def write(each: ParameterDescription) -> str:
        optional = "" if each.required or each.kind.startswith("var") else " = ..."
        return f"{each.name}: {_argument_type(each, names, in_loop=in_loop)}{optional}"

    hides_self = any(each.name == "self" for each in parameters)
    yield "_self" if hides_self else "self"
    if hides_self and not any(each.kind == "positional only" for each in parameters):
        yield "/"
    yield from format_parameters(parameters, write)


def _argument_type(each: ParameterDescription, names: _Names, *, in_loop: bool) -> str:
    """Return the type of an argument."""
    if not each.stream:
        return names.unhide(each.accepts)
    item = each.accepts
    return names.unhide(f"AsyncIterable[{item}] | Iterable[{item}]" if in_loop else f"Iterable[{item}]")


def _camel_case(service: str) -> str:
    """Return the name of a service in CamelCase, as an identifier."""
    name = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", service))
    return name if name.isidentifier() else f"Service{name}"


def _make_unique(name: str, taken: set[str]) -> str:
    """Return the name with underscores appended until it is not taken."""
    while name in taken:
        name += "_"
    return name
