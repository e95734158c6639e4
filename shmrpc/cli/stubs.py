"""A service's description as a ``.pyi`` file, for type checkers of clients that have not the server's source."""

from __future__ import annotations

import ast
import dataclasses
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from shmrpc import sync
from shmrpc.client.client import Client
from shmrpc.introspection.describe import (
    Description,
    EndpointDescription,
    FieldDescription,
    ParameterDescription,
    TypeDescription,
)

#: Where the names in the texts of types come from.
_SOURCES: Final[dict[str, str]] = {
    "AbstractSet": "collections.abc",
    "Any": "typing",
    "AsyncGenerator": "collections.abc",
    "AsyncIterable": "collections.abc",
    "Collection": "collections.abc",
    "EndpointGroup": "shmrpc.client.groups",
    "Generator": "collections.abc",
    "Iterable": "collections.abc",
    "Literal": "typing",
    "Mapping": "collections.abc",
    "MutableSequence": "collections.abc",
    "NotRequired": "typing",
    "ReadOnly": "typing_extensions",
    "Sequence": "collections.abc",
    "TypeAlias": "typing",
    "TypedDict": "typing",
}
_LINE_LENGTH: Final = 120
#: mypy wants no types of those that have none; where there are some, it has nothing to ignore.
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
    """What the texts of types are called where the name of an endpoint hides them."""

    def __init__(self, endpoints: Iterable[EndpointDescription]) -> None:
        self._hiding = {part for endpoint in endpoints for part in endpoint.name.split(".")}
        #: Names that are hidden somewhere, with those under which they can be reached.
        self.aliases: dict[str, str] = {}

    def visible(self, text: str) -> str:
        """A type for the body of a class whose attributes are endpoints."""
        tree = ast.parse(text, mode="eval")
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        hidden = [node for node in names if node.id in self._hiding]
        for node in hidden:
            node.id = self.aliases.setdefault(node.id, f"_the_{node.id}")
        return ast.unparse(tree) if hidden else text


def stub_text(description: Description) -> str:
    """The stub of a service's clients: one for a loop and one for threads."""
    taken = {name for each in description.types for name in (each.name, each.input_name)}
    base = _camel(description.service)
    client, sync_client = _unused(f"{base}Client", taken), _unused(f"{base}SyncClient", taken)
    names = _Names(description.endpoints)
    definitions = [line for each in description.types for line in _definition(each)]
    clients = [
        *_client(client, description, names, in_loop=True),
        "",
        *_client(sync_client, description, names, in_loop=False),
    ]
    module = f"{re.sub(r'[^a-z0-9]+', '_', description.service.lower())}_client"
    header = _HEADER.format(service=description.service, module=module, client=client, sync_client=sync_client)
    hidden = [*(f"{alias} = {name}" for name, alias in names.aliases.items()), "", "class _NoSuchEndpoint: ...", ""]
    body = [*definitions, *hidden, *clients]
    return (
        "\n".join([header, *_imports(set(re.findall(r"\w+", "\n".join(body))), _modules(description)), "", *body])
        + "\n"
    )


def _modules(description: Description) -> set[str]:
    """The modules that the texts of types name."""
    endpoints = [text for each in description.endpoints for text in (each.gives, *(p.accepts for p in each.parameters))]
    classes = [text for each in description.types for text in (each.gives, each.accepts) if text is not None]
    fields = [text for each in description.types for field in each.fields for text in (field.gives, field.accepts)]
    nodes = (node for text in {*endpoints, *classes, *fields} for node in ast.walk(ast.parse(text, mode="eval")))
    return {ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute)}


def _imports(used: set[str], modules: set[str]) -> list[str]:
    """The imports for these names, and of these modules."""
    by_module: dict[str, list[str]] = {}
    for name in sorted(used & _SOURCES.keys()):
        by_module.setdefault(_SOURCES[name], []).append("Set as AbstractSet" if name == "AbstractSet" else name)
    return [
        *(f"import {name}{_UNTYPED.get(name, '')}" for name in sorted({"shmrpc", *modules})),
        *(f"from {module} import {', '.join(names)}" for module, names in sorted(by_module.items())),
    ]


def _tree(endpoints: Iterable[EndpointDescription], client: type[object]) -> tuple[_Node, list[str]]:
    """Endpoints by their groups, and the names of those that cannot be attributes of a client."""
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


def _definition(each: TypeDescription) -> Iterator[str]:
    """The TypedDict or the alias for a class; two if what may be sent is written otherwise than what arrives."""
    if each.received:
        yield from _one_definition(each, each.name, as_input=False)
    if each.sent and (each.input_name != each.name or not each.received):
        yield from _one_definition(each, each.input_name, as_input=True)


def _one_definition(each: TypeDescription, name: str, *, as_input: bool) -> Iterator[str]:
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
    """Whether a field's name cannot stand in the body of a class, or hides a type there."""
    hides = any(re.search(rf"\b{re.escape(field)}\b", text) for text in fields.values())
    return not field.isidentifier() or keyword.iskeyword(field) or field.startswith("__") or hides


def _field_type(field: FieldDescription, *, as_input: bool) -> str:
    # What may be sent is read-only: then a wider type also takes values of a narrower one.
    text = f"ReadOnly[{field.accepts}]" if as_input else field.gives
    there = field.required if as_input else field.always
    return text if there else f"NotRequired[{text}]"


def _client(name: str, description: Description, names: _Names, *, in_loop: bool) -> Iterator[str]:
    root, left_out = _tree(description.endpoints, Client if in_loop else sync.Client)
    yield f"class {name}({'shmrpc.Client' if in_loop else 'shmrpc.sync.Client'}):"
    yield from (
        f'    # client.call("{endpoint}", ...): its name is a word of Python\'s or a method of every client.'
        for endpoint in left_out
    )
    yield from _members(root, names, in_loop=in_loop)


def _members(node: _Node, names: _Names, *, in_loop: bool) -> Iterator[str]:
    """The body of the class of a client or a group."""
    for endpoint_name, endpoint in node.endpoints.items():
        yield from _method(endpoint_name, endpoint, names, in_loop=in_loop)
    for group_name, group in node.groups.items():
        # No endpoint's name begins so: it hides nothing.
        yield f"    class _{group_name}_group({names.visible('EndpointGroup')}):"
        yield from (f"    {line}" for line in _members(group, names, in_loop=in_loop))
        yield f"    {group_name}: _{group_name}_group"
    yield f"    def __getattr__(self, name: {names.visible('str')}) -> _NoSuchEndpoint: ..."


def _method(name: str, endpoint: EndpointDescription, names: _Names, *, in_loop: bool) -> Iterator[str]:
    gives = names.visible(endpoint.gives)
    if endpoint.streams:
        kind = f"AsyncGenerator[{gives}, None]" if in_loop else f"Generator[{gives}, None, None]"
        gives = names.visible(kind)
    start = "async def" if in_loop and not endpoint.streams else "def"
    parameters = list(_parameters(endpoint.parameters, names, in_loop=in_loop))
    end = f") -> {gives}:" + ("" if endpoint.docstring else " ...")
    line = f"    {start} {name}({', '.join(parameters)}{end}"
    if len(line) <= _LINE_LENGTH:
        yield line
    else:
        yield from (f"    {start} {name}(", *(f"        {each}," for each in parameters), f"    {end}")
    if endpoint.docstring:
        yield from _docstring(endpoint.docstring)


def _docstring(text: str) -> Iterator[str]:
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if escaped.endswith('"'):
        escaped = f'{escaped[:-1]}\\"'
    first, *others = escaped.splitlines()
    if not others:
        yield f'        """{first}"""'
        return
    yield f'        """{first}'
    yield from (f"        {line}".rstrip() for line in others)
    yield '        """'


def _parameters(parameters: list[ParameterDescription], names: _Names, *, in_loop: bool) -> Iterator[str]:
    """A method's parameters, with the marks between their kinds."""
    positional = [each for each in parameters if each.kind == "positional only"]
    hides_self = any(each.name == "self" for each in parameters)
    yield "_self" if hides_self else "self"
    if hides_self and not positional:
        yield "/"
    starred = any(each.kind == "var positional" for each in parameters)
    for each in parameters:
        if each.kind == "keyword only" and not starred:
            yield "*"
            starred = True
        stars = {"var positional": "*", "var keyword": "**"}.get(each.kind, "")
        optional = "" if each.required or stars else " = ..."
        yield f"{stars}{each.name}: {_argument(each, names, in_loop=in_loop)}{optional}"
        if positional and each is positional[-1]:
            yield "/"


def _argument(each: ParameterDescription, names: _Names, *, in_loop: bool) -> str:
    """The type of an argument."""
    if not each.stream:
        return names.visible(each.accepts)
    item = each.accepts
    return names.visible(f"AsyncIterable[{item}] | Iterable[{item}]" if in_loop else f"Iterable[{item}]")


def _camel(service: str) -> str:
    name = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", service))
    return name if name.isidentifier() else f"Service{name}"


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
