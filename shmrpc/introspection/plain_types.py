"""The types of values as a client has them that knows none of the server's classes.

Each type has two texts, in Python's own notation. What *arrives* is what the server has sent, except for its classes:
a dataclass is a dict. What the server *accepts* is wider: a UUID or its text, any array for a list. A class whose
values travel as a map becomes a TypedDict, one that travels as an array or as a plain value an alias;
:class:`PlainTypes` keeps their definitions.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect as mi

from shmrpc.introspection import foreign
from shmrpc.introspection.type_facts import (
    CLASSES,
    ClassKind,
    arrives_untold,
    class_kind,
    classes_in,
    declared_types,
    depends_on_place,
    field_default,
    is_always_there,
    is_array,
    is_registered,
    parts,
    registered_name,
    tag_of,
)
from shmrpc.introspection.type_info import TypeReader
from shmrpc.introspection.type_texts import Place, TypeTexts, place_of
from shmrpc.values.notation import LIBRARIES, union
from shmrpc.values.type_names import type_name

#: Names that stand for something else where the texts are read.
_RESERVED: Final = {
    *dir(builtins),
    *("AbstractSet", "Any", "AsyncGenerator", "AsyncIterable", "Collection", "EndpointGroup", "Generator"),
    *("Iterable", "Literal", "Mapping", "MutableSequence", "NotRequired", "ReadOnly", "Sequence", "TypeAlias"),
    *("TypedDict", "array", "datetime", "decimal", "fractions", "msgspec", "pathlib", "shmrpc", "uuid", "zoneinfo"),
    *LIBRARIES,
}


class FieldDescription(msgspec.Struct, frozen=True):
    """A field of a class whose values travel."""

    #: As it travels.
    name: str
    #: As it is declared.
    type: str
    #: What arrives, and what may be sent, without the server's classes.
    gives: str
    accepts: str
    #: Whether a value sent to the server must have it, and whether one that arrives always does.
    required: bool = True
    always: bool = True
    default: str | None = None


class TypeDescription(msgspec.Struct, frozen=True):
    """A class whose values travel. One that arrives in several forms has several of these."""

    #: As its source has it.
    type: str
    #: What it is called in the texts of types that arrive, and of those that may be sent.
    name: str
    input_name: str
    kind: ClassKind
    #: Of one that travels as a map or an array.
    fields: list[FieldDescription] = []
    #: For one that travels as an array or as a plain value: what that is.
    gives: str | None = None
    accepts: str | None = None
    #: Whether it occurs in what arrives, and in what may be sent.
    received: bool = True
    sent: bool = True
    #: The name under which the server has registered it: who has registered it too gets instances.
    registered: str | None = None


@dataclasses.dataclass
class _Class:
    """A class that was met, and where."""

    info: Any
    #: What it is called.
    names: dict[Place, str]
    places: set[Place] = dataclasses.field(default_factory=set)
    #: Its tag tells it from the other members of a union.
    tag_needed: bool = False

    @property
    def arrives_as(self) -> list[Place]:
        """The forms in which it arrives."""
        places: list[Place] = ["received", "plain"]
        return [place for place in places if place in self.places]


class PlainTypes:
    """The texts of types, and the definitions of the classes in them.

    ``received`` are types of what arrives at the client, ``sent`` of what it may send.
    """

    def __init__(self, received: Iterable[Any], sent: Iterable[Any]) -> None:
        self._info = TypeReader().read
        self._classes: dict[Any, _Class] = {}
        self._taken_names: set[str] = set(_RESERVED)
        self._texts = TypeTexts(lambda cls, place: self._classes[cls].names[place] if cls in self._classes else "Any")
        for kind in received:
            self._meet(self._info(kind), "received")
        for kind in sent:
            self._meet(self._info(kind), "sent")
        self._tell_plain_apart()
        self._tell_inputs_apart()

    def gives(self, kind: Any) -> str:
        """What arrives where a server sends this type."""
        return union(self._texts.texts(self._info(kind), "received"))

    def accepts(self, kind: Any) -> str:
        """What may be sent where a server takes this type."""
        return union(self._texts.texts(self._info(kind), "sent"))

    def definitions(self) -> list[TypeDescription]:
        """The classes in these types, in the order in which they were met."""
        return [definition for each in self._classes.values() for definition in self._definitions(each)]

    def _meet(self, info: Any, place: Place) -> None:
        """Notes the classes in a type, and gives them names."""
        if isinstance(info, CLASSES):
            self._meet_class(info, place)
            return
        for part in parts(info):
            self._meet(part, place)
        structs = [part for part in parts(info) if isinstance(part, mi.StructType)]
        if isinstance(info, mi.UnionType) and len(structs) > 1:
            for part in structs:
                if part.cls in self._classes:
                    self._classes[part.cls].tag_needed = True

    def _meet_class(self, info: Any, place: Place) -> None:
        if place != "sent" and arrives_untold(info):
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
            self._meet(field.type, place_of(info, field, place))

    def _new_name(self, name: str) -> str:
        base = name = re.sub(r"\W+", "_", name).strip("_") or "Type"
        number = 1
        while name in self._taken_names:
            number += 1
            name = f"{base}{number}"
        self._taken_names.add(name)
        return name

    def _tell_plain_apart(self) -> None:
        """Gives a second name to each class that arrives in two forms."""
        both = [each for each in self._classes.values() if len(each.arrives_as) == 2]
        for each in _spread(both, [each for each in both if self._form(each, "received") != self._form(each, "plain")]):
            each.names["plain"] = self._new_name(f"{each.names['received']}Plain")

    def _tell_inputs_apart(self) -> None:
        """Gives a second name to each class that may be sent in other forms than it arrives in."""
        both = [each for each in self._classes.values() if "sent" in each.places and each.arrives_as]
        for each in both:
            each.names["sent"] = each.names[each.arrives_as[0]]
        for each in _spread(both, [each for each in both if self._differs(each)]):
            each.names["sent"] = self._new_name(f"{each.names['sent']}Input")

    def _differs(self, each: _Class) -> bool:
        """Whether what may be sent is written otherwise than what arrives."""
        one = self._define(each, each.arrives_as[0])
        return (
            _travels_otherwise(each.info)
            or one.gives != one.accepts
            or any(field.gives != field.accepts or field.required != field.always for field in one.fields)
        )

    def _form(self, each: _Class, place: Place) -> list[str | None]:
        """What arrives of a class."""
        definition = self._define(each, place)
        return [definition.gives, *(field.gives for field in definition.fields)]

    def _definitions(self, each: _Class) -> Iterable[TypeDescription]:
        """One for each form that has a name of its own."""
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
        """A class as it is in one place, and what may be sent for it."""
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
    """Whether an instance arrives with other fields than it may be sent with: as a registered Struct does."""
    if not isinstance(info, mi.StructType) or info.array_like or not is_registered(info):
        return False
    return bool(tag_of(info)) or any(field.name != field.encode_name for field in info.fields)


def _spread(among: list[_Class], differing: list[_Class]) -> list[_Class]:
    """Those that differ, and those in which they occur."""
    found = {each.info.cls for each in differing}
    uses = {each.info.cls: {part.cls for part in classes_in(each.info)} for each in among}
    while more := {cls for cls, used in uses.items() if cls not in found and used & found}:
        found |= more
    return [each for each in among if each.info.cls in found]
