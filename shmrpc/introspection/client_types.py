"""Types as a client without the server's classes has them.

Each type has two texts, in Python's notation. What *arrives* is what the server sent, except for its classes: a
dataclass is a dict. What the server *accepts* is wider: a UUID or its text, any array for a list. A class whose
instances travel as maps becomes a TypedDict, one that travels as an array or as a plain value becomes an alias;
:class:`ClientTypes` keeps their definitions.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect as mi

from shmrpc.introspection import foreign
from shmrpc.introspection.type_facts import (
    CLASSES,
    ClassKind,
    Place,
    class_kind,
    classes_in,
    declared_types,
    depends_on_place,
    field_default,
    is_always_there,
    is_array,
    is_opaque,
    is_registered,
    parts,
    place_of,
    registered_name,
    tag_of,
)
from shmrpc.introspection.type_info import TypeReader
from shmrpc.introspection.type_texts import TypeTexts
from shmrpc.values.notation import LIBRARIES, union
from shmrpc.values.type_names import type_name

#: Names that already mean something where the texts are read.
_RESERVED: Final = {
    *dir(builtins),
    *("AbstractSet", "Any", "AsyncGenerator", "AsyncIterable", "Collection", "EndpointGroup", "Generator"),
    *("Iterable", "Literal", "Mapping", "MutableSequence", "NotRequired", "ReadOnly", "Sequence", "TypeAlias"),
    *("TypedDict", "array", "datetime", "decimal", "fractions", "msgspec", "pathlib", "shmrpc", "uuid", "zoneinfo"),
    *LIBRARIES,
}


class FieldDescription(msgspec.Struct, frozen=True):
    """A field of a class whose instances travel."""

    #: The name under which it travels.
    name: str
    #: Its type as declared.
    type: str
    #: What arrives without the server's classes.
    gives: str
    #: What may be sent without the server's classes.
    accepts: str
    #: Whether an instance sent to the server must have it.
    required: bool = True
    #: Whether every instance that arrives has it.
    always: bool = True
    #: Its default as source code.
    default: str | None = None


class TypeDescription(msgspec.Struct, frozen=True):
    """A class whose instances travel. One that arrives in several forms has several of these."""

    #: Its name in the source.
    type: str
    #: Its name in the texts of types that arrive.
    name: str
    #: Its name in the texts of types that may be sent.
    input_name: str
    kind: ClassKind
    #: The fields of one that travels as a map or an array.
    fields: list[FieldDescription] = []
    #: What arrives, for a class that travels as an array or as a plain value.
    gives: str | None = None
    #: What may be sent, for a class that travels as an array or as a plain value.
    accepts: str | None = None
    #: Whether it occurs in what arrives.
    received: bool = True
    #: Whether it occurs in what may be sent.
    sent: bool = True
    #: The name under which the server has registered it; a client that has registered it too gets instances.
    registered: str | None = None


@dataclasses.dataclass
class _Class:
    """A class that occurs in the types, and where."""

    info: Any
    #: Its name in each place.
    names: dict[Place, str]
    places: set[Place] = dataclasses.field(default_factory=set)
    #: Whether its tag tells it from the other members of a union.
    tag_needed: bool = False

    @property
    def arrives_as(self) -> list[Place]:
        """The forms in which it arrives."""
        places: list[Place] = ["received", "plain"]
        return [place for place in places if place in self.places]


class ClientTypes:
    """The texts of types, and the definitions of the classes in them.

    ``received`` are the types of what arrives at the client, ``sent`` those of what it may send.
    """

    def __init__(self, received: Iterable[Any], sent: Iterable[Any]) -> None:
        self._info = TypeReader().read
        self._classes: dict[Any, _Class] = {}
        self._taken_names: set[str] = set(_RESERVED)
        self._texts = TypeTexts(lambda cls, place: self._classes[cls].names[place] if cls in self._classes else "Any")
        for kind in received:
            self._collect(self._info(kind), "received")
        for kind in sent:
            self._collect(self._info(kind), "sent")
        self._name_plain_forms()
        self._name_inputs()

    def gives(self, kind: Any) -> str:
        """What arrives where the server sends this type."""
        return union(self._texts.texts(self._info(kind), "received"))

    def accepts(self, kind: Any) -> str:
        """What may be sent where the server takes this type."""
        return union(self._texts.texts(self._info(kind), "sent"))

    def definitions(self) -> list[TypeDescription]:
        """The classes in these types, in the order in which they first occur."""
        return [definition for each in self._classes.values() for definition in self._definitions(each)]

    def _collect(self, info: Any, place: Place) -> None:
        """Collect the classes in a type, and name them."""
        if isinstance(info, CLASSES):
            self._collect_class(info, place)
            return
        for part in parts(info):
            self._collect(part, place)
        structs = [part for part in parts(info) if isinstance(part, mi.StructType)]
        if isinstance(info, mi.UnionType) and len(structs) > 1:
            for part in structs:
                if part.cls in self._classes:
                    self._classes[part.cls].tag_needed = True

    def _collect_class(self, info: Any, place: Place) -> None:
        if place != "sent" and is_opaque(info):
            return
        if place == "plain" and not depends_on_place(info):
            place = "received"
        known = self._classes.get(info.cls)
        if known is None:
            name = self._new_name(type_name(info.cls))
            known = self._classes[info.cls] = _Class(info, {"sent": name, "received": name, "plain": name})
        if place in known.places:
            return
        known.places.add(place)
        for field in () if isinstance(info, mi.EnumType) else info.fields:
            self._collect(field.type, place_of(info, field, place))

    def _new_name(self, name: str) -> str:
        base = name = re.sub(r"\W+", "_", name).strip("_") or "Type"
        number = 1
        while name in self._taken_names:
            number += 1
            name = f"{base}{number}"
        self._taken_names.add(name)
        return name

    def _name_plain_forms(self) -> None:
        """Give a second name to each class that arrives in two forms."""
        both = [each for each in self._classes.values() if len(each.arrives_as) == 2]
        for each in _with_users(both, self._differs_as_plain):
            each.names["plain"] = self._new_name(f"{each.names['received']}Plain")

    def _name_inputs(self) -> None:
        """Give a second name to each class that may be sent in a form in which it does not arrive."""
        both = [each for each in self._classes.values() if "sent" in each.places and each.arrives_as]
        for each in both:
            each.names["sent"] = each.names[each.arrives_as[0]]
        for each in _with_users(both, self._differs_as_input):
            each.names["sent"] = self._new_name(f"{each.names['sent']}Input")

    def _differs_as_input(self, each: _Class) -> bool:
        """Whether what may be sent has another text than what arrives."""
        one = self._define(each, each.arrives_as[0])
        return (
            _travels_otherwise(each.info)
            or one.gives != one.accepts
            or any(field.gives != field.accepts or field.required != field.always for field in one.fields)
        )

    def _differs_as_plain(self, each: _Class) -> bool:
        """Whether what arrives as plain MessagePack has another text."""
        one, plain = self._define(each, "received"), self._define(each, "plain")
        fields = zip(one.fields, plain.fields, strict=True)
        return one.gives != plain.gives or any(field.gives != other.gives for field, other in fields)

    def _definitions(self, each: _Class) -> Iterable[TypeDescription]:
        """One definition for each form with a name of its own."""
        first = self._define(each, each.arrives_as[0] if each.arrives_as else "sent")
        if "sent" in each.places and each.arrives_as and _travels_otherwise(each.info):
            yield msgspec.structs.replace(first, input_name=first.name, sent=False)
            sent = self._define(each, "sent")
            yield msgspec.structs.replace(sent, received=False)
        else:
            yield first
        if len(each.arrives_as) == 2 and each.names["plain"] != each.names["received"]:
            plain = self._define(each, "plain")
            yield msgspec.structs.replace(plain, input_name=plain.name, sent=False)

    def _define(self, each: _Class, place: Place) -> TypeDescription:
        """A class as it is in a place, and what may be sent for it."""
        info, arrives = each.info, "received" if place == "sent" else place
        gives = accepts = None
        if isinstance(info, mi.EnumType):
            gives = accepts = foreign.values_of(info.cls)
        elif is_array(info):
            accepts = union(self._texts.array(info, "sent"))
            if place == "sent" or not is_registered(info):
                gives = union(self._texts.array(info, arrives))
        return TypeDescription(
            type_name(info.cls),
            each.names[place],
            each.names["sent"],
            class_kind(info),
            [] if isinstance(info, mi.EnumType) else self._fields(each, place),
            gives,
            accepts,
            bool(each.arrives_as),
            "sent" in each.places,
            registered_name(info),
        )

    def _fields(self, each: _Class, place: Place) -> list[FieldDescription]:
        info, declared = each.info, declared_types(each.info.cls)
        own_names = place != "sent" and is_registered(info)
        gives = self._texts.fields(info, "received" if place == "sent" else place)
        fields = [
            FieldDescription(
                field.name if own_names else field.encode_name,
                type_name(declared.get(field.name, Any)),
                given,
                accepted,
                field.required,
                is_always_there(info, field, declared.get(field.name, Any)),
                field_default(field),
            )
            for field, given, accepted in zip(info.fields, gives, self._texts.fields(info, "sent"), strict=True)
        ]
        tag = "".join(tag_of(info))
        if tag and not own_names and not is_array(info):
            fields.insert(0, FieldDescription(info.tag_field, tag, tag, tag, each.tag_needed))
        return fields


def _travels_otherwise(info: Any) -> bool:
    """Whether an instance arrives with other fields than it may be sent with, as a registered Struct does."""
    if not isinstance(info, mi.StructType) or info.array_like or not is_registered(info):
        return False
    return bool(tag_of(info)) or any(field.name != field.encode_name for field in info.fields)


def _with_users(among: list[_Class], differs: Callable[[_Class], bool]) -> list[_Class]:
    """The classes that differ, and those that contain them."""
    found = {each.info.cls for each in among if differs(each)}
    uses = {each.info.cls: {part.cls for part in classes_in(each.info)} for each in among}
    while more := {cls for cls, used in uses.items() if cls not in found and used & found}:
        found |= more
    return [each for each in among if each.info.cls in found]
