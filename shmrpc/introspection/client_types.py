"""Types for a client that does not have the classes of the server.

Each type has two texts, in Python's notation. The type that *arrives* is the type that the server sends, except for its
classes: a dataclass arrives as a dict. The type that the server *accepts* is wider: a UUID or its text, any array for a
list. A class whose instances travel as maps becomes a TypedDict. A class whose instances travel as arrays or as plain
values becomes an alias. :class:`ClientTypes` has the definitions.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect as mi

from shmrpc.introspection import known_types
from shmrpc.introspection.type_facts import (
    CLASSES,
    ClassKind,
    Form,
    class_kind,
    classes_in,
    declared_types,
    field_default,
    field_form,
    inherits_form,
    is_always_present,
    is_array,
    is_opaque,
    is_registered,
    parts,
    registered_name,
    tag_texts,
)
from shmrpc.introspection.type_info import TypeReader
from shmrpc.introspection.type_texts import TypeTexts
from shmrpc.values.type_names import type_name
from shmrpc.values.type_repr import LIBRARIES, union_text

#: Names that have a meaning in the text of a type already.
_RESERVED: Final = {
    *dir(builtins),
    *("AbstractSet", "Any", "AsyncGenerator", "AsyncIterable", "Collection", "EndpointGroup", "Generator"),
    *("Iterable", "Literal", "Mapping", "MutableSequence", "NotRequired", "ReadOnly", "Sequence", "TypeAlias"),
    *("TypedDict", "array", "datetime", "decimal", "fractions", "msgspec", "pathlib", "shmrpc", "uuid", "zoneinfo"),
    *LIBRARIES,
}


class FieldDescription(msgspec.Struct, frozen=True):
    """Field of a class whose instances are sent or received."""

    #: Name of the field in the encoded value.
    name: str
    #: Declared type.
    type: str
    #: Type that arrives at a client without the server's classes.
    gives: str
    #: Type that a client without the server's classes may send.
    accepts: str
    #: True if an instance that is sent to the server must have the field.
    required: bool = True
    #: True if every instance that arrives has the field.
    always: bool = True
    #: Default as source code.
    default: str | None = None


class TypeDescription(msgspec.Struct, frozen=True):
    """Class whose instances are sent or received. A class with several forms has a description for each."""

    #: Name in the source.
    type: str
    #: Name in the texts of types that arrive.
    name: str
    #: Name in the texts of types that may be sent.
    input_name: str
    kind: ClassKind
    #: Fields of a class that travels as a map or an array.
    fields: list[FieldDescription] = []
    #: Type that arrives, for a class that travels as an array or as a plain value.
    gives: str | None = None
    #: Type that may be sent, for a class that travels as an array or as a plain value.
    accepts: str | None = None
    #: True if the class occurs in types that arrive.
    received: bool = True
    #: True if the class occurs in types that may be sent.
    sent: bool = True
    #: Name under which the server has registered the class; a client that has registered it, too, gets instances.
    registered: str | None = None


@dataclasses.dataclass
class _Class:
    """Class that occurs in the types, with the forms in which it occurs."""

    info: Any
    #: Name of the class in each form.
    names: dict[Form, str]
    forms: set[Form] = dataclasses.field(default_factory=set)
    #: True if its tag distinguishes it from other members of a union.
    tag_needed: bool = False

    @property
    def arrives_as(self) -> list[Form]:
        """Forms in which the class arrives."""
        forms: list[Form] = ["received", "plain"]
        return [form for form in forms if form in self.forms]


class ClientTypes:
    """Texts of types, and definitions of the classes in these types.

    ``received`` are the types of values that arrive at the client, ``sent`` the types of values that it may send.
    """

    def __init__(self, received: Iterable[Any], sent: Iterable[Any]) -> None:
        self._info = TypeReader().read
        self._classes: dict[Any, _Class] = {}
        self._taken_names: set[str] = set(_RESERVED)
        self._texts = TypeTexts(lambda cls, form: self._classes[cls].names[form] if cls in self._classes else "Any")
        for kind in received:
            self._collect(self._info(kind), "received")
        for kind in sent:
            self._collect(self._info(kind), "sent")
        self._name_plain_forms()
        self._name_inputs()

    def gives(self, kind: Any) -> str:
        """Return the text of the type that arrives when the server sends this type, one of ``received``."""
        return union_text(self._texts.texts(self._info(kind), "received"))

    def accepts(self, kind: Any) -> str:
        """Return the text of the type that may be sent where the server accepts this type, one of ``sent``."""
        return union_text(self._texts.texts(self._info(kind), "sent"))

    def definitions(self) -> list[TypeDescription]:
        """Return the definitions of the classes in these types, in the order of their first occurrence."""
        return [definition for each in self._classes.values() for definition in self._definitions(each)]

    def _collect(self, info: Any, form: Form) -> None:
        """Record the classes in a type and their forms, and give them names. Does nothing for those recorded."""
        if isinstance(info, CLASSES):
            self._collect_class(info, form)
            return
        for part in parts(info):
            self._collect(part, form)
        structs = [part for part in parts(info) if isinstance(part, mi.StructType)]
        if isinstance(info, mi.UnionType) and len(structs) > 1:
            for part in structs:
                if part.cls in self._classes:
                    self._classes[part.cls].tag_needed = True

    def _collect_class(self, info: Any, form: Form) -> None:
        """Record a class in a form, and the classes in its fields."""
        if form != "sent" and is_opaque(info):
            return
        if form == "plain" and not inherits_form(info):
            form = "received"
        known = self._classes.get(info.cls)
        if known is None:
            name = self._new_name(type_name(info.cls))
            known = self._classes[info.cls] = _Class(info, {"sent": name, "received": name, "plain": name})
        if form in known.forms:
            return
        known.forms.add(form)
        for field in () if isinstance(info, mi.EnumType) else info.fields:
            self._collect(field.type, field_form(info, field, form))

    def _new_name(self, name: str) -> str:
        """Return an identifier made of this name that is not taken, and take it."""
        base = name = re.sub(r"\W+", "_", name).strip("_") or "Type"
        number = 1
        while name in self._taken_names:
            number += 1
            name = f"{base}{number}"
        self._taken_names.add(name)
        return name

    def _name_plain_forms(self) -> None:
        """Give a second name to each class that arrives in two forms with different texts."""
        both = [each for each in self._classes.values() if len(each.arrives_as) == 2]
        for each in _with_containers(both, self._differs_as_plain):
            each.names["plain"] = self._new_name(f"{each.names['received']}Plain")

    def _name_inputs(self) -> None:
        """Name the form to send as the form that arrives, or give it a second name if the texts differ."""
        both = [each for each in self._classes.values() if "sent" in each.forms and each.arrives_as]
        for each in both:
            each.names["sent"] = each.names[each.arrives_as[0]]
        for each in _with_containers(both, self._differs_as_input):
            each.names["sent"] = self._new_name(f"{each.names['sent']}Input")

    def _differs_as_input(self, each: _Class) -> bool:
        """Return True if the text of the form to send differs from the text of the form that arrives."""
        one = self._define(each, each.arrives_as[0])
        return (
            _has_sent_form(each.info)
            or one.gives != one.accepts
            or any(field.gives != field.accepts or field.required != field.always for field in one.fields)
        )

    def _differs_as_plain(self, each: _Class) -> bool:
        """Return True if the text of the plain form differs from the text of the received form."""
        one, plain = self._define(each, "received"), self._define(each, "plain")
        fields = zip(one.fields, plain.fields, strict=True)
        return one.gives != plain.gives or any(field.gives != other.gives for field, other in fields)

    def _definitions(self, each: _Class) -> Iterable[TypeDescription]:
        """Yield a definition for each form of a class that has a name of its own."""
        first = self._define(each, each.arrives_as[0] if each.arrives_as else "sent")
        if "sent" in each.forms and each.arrives_as and _has_sent_form(each.info):
            yield msgspec.structs.replace(first, input_name=first.name, sent=False)
            sent = self._define(each, "sent")
            yield msgspec.structs.replace(sent, received=False)
        else:
            yield first
        if len(each.arrives_as) == 2 and each.names["plain"] != each.names["received"]:
            plain = self._define(each, "plain")
            yield msgspec.structs.replace(plain, input_name=plain.name, sent=False)

    def _define(self, each: _Class, form: Form) -> TypeDescription:
        """Return the definition of a class in one form, with the type that may be sent for it."""
        info, arrives = each.info, "received" if form == "sent" else form
        gives = accepts = None
        if isinstance(info, mi.EnumType):
            gives = accepts = known_types.enum_text(info.cls)
        elif is_array(info):
            accepts = union_text(self._texts.array(info, "sent"))
            if form == "sent" or not is_registered(info):
                gives = union_text(self._texts.array(info, arrives))
        return TypeDescription(
            type_name(info.cls),
            each.names[form],
            each.names["sent"],
            class_kind(info),
            [] if isinstance(info, mi.EnumType) else self._fields(each, form),
            gives,
            accepts,
            bool(each.arrives_as),
            "sent" in each.forms,
            registered_name(info),
        )

    def _fields(self, each: _Class, form: Form) -> list[FieldDescription]:
        """Return the fields of a class in one form, with the tag of a Struct if it has one."""
        info, declared = each.info, declared_types(each.info.cls)
        own_names = form != "sent" and is_registered(info)
        gives = self._texts.fields(info, "received" if form == "sent" else form)
        fields = [
            FieldDescription(
                field.name if own_names else field.encode_name,
                type_name(declared.get(field.name, Any)),
                given,
                accepted,
                field.required,
                is_always_present(info, field, declared.get(field.name, Any)),
                field_default(field),
            )
            for field, given, accepted in zip(info.fields, gives, self._texts.fields(info, "sent"), strict=True)
        ]
        tag = "".join(tag_texts(info))
        if tag and not own_names and not is_array(info):
            fields.insert(0, FieldDescription(info.tag_field, tag, tag, tag, each.tag_needed))
        return fields


def _has_sent_form(info: Any) -> bool:
    """Return True if instances arrive with other fields than they are sent with, as a registered Struct does."""
    if not isinstance(info, mi.StructType) or info.array_like or not is_registered(info):
        return False
    return bool(tag_texts(info)) or any(field.name != field.encode_name for field in info.fields)


def _with_containers(among: list[_Class], differs: Callable[[_Class], bool]) -> list[_Class]:
    """Return the classes for which ``differs`` is true, and all classes that contain one of these."""
    found = {each.info.cls for each in among if differs(each)}
    uses = {each.info.cls: {part.cls for part in classes_in(each.info)} for each in among}
    while more := {cls for cls, used in uses.items() if cls not in found and used & found}:
        found |= more
    return [each for each in among if each.info.cls in found]
