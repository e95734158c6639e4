"""Checks of values against the text of a type, without msgspec, for texts that msgspec helped to make."""

from __future__ import annotations

import array
import ast
import builtins
import collections
import collections.abc
import datetime
import decimal
import fractions
import pathlib
import types
import typing
import uuid
import zoneinfo
from typing import Any

import numpy
import numpy.typing
import pyarrow  # type: ignore[import-untyped, unused-ignore]

from shmrpc.introspection.client_types import TypeDescription
from shmrpc.values.aliases import without_aliases

_NAMES = {
    **vars(builtins),
    "Any": Any,
    "Literal": typing.Literal,
    "array": array,
    "collections": collections,
    "datetime": datetime,
    "decimal": decimal,
    "fractions": fractions,
    "numpy": numpy,
    "pathlib": pathlib,
    "pyarrow": pyarrow,
    "uuid": uuid,
    "zoneinfo": zoneinfo,
    "Collection": collections.abc.Collection,
    "MutableSequence": collections.abc.MutableSequence,
    "Sequence": collections.abc.Sequence,
    "AbstractSet": collections.abc.Set,
    "Mapping": collections.abc.Mapping,
}
#: A value is of exactly the class that a text names, except where there is a class for each system or each zone.
_FAMILIES = (pathlib.PurePath, datetime.tzinfo)


class Types:
    """The classes of a description, for one direction."""

    def __init__(self, types: list[TypeDescription], *, sent: bool) -> None:
        self._types = {each.input_name if sent else each.name: each for each in types}
        self._sent = sent

    def fits(self, value: Any, text: str) -> bool:
        """Return True if the value is of the type that the text names."""
        return self._fits(value, ast.parse(text, mode="eval").body)

    def _fits(self, value: Any, node: ast.expr) -> bool:
        match node:
            case ast.Constant(None):
                return value is None
            case ast.Name("Any"):
                return True
            case ast.BinOp(left, ast.BitOr(), right):
                return self._fits(value, left) or self._fits(value, right)
            case ast.Name(name) if name in self._types:
                return self._fits_class(value, self._types[name])
            case ast.Subscript(ast.Name("Literal"), choices):
                known = ast.literal_eval(choices)
                return value in (known if isinstance(known, tuple) else (known,))
            case ast.Subscript(ast.Name(name), ast.Tuple([item, ast.Constant(builtins.Ellipsis)])):
                return self._fits_items(value, name, item)
            case ast.Subscript(ast.Name("tuple"), items):
                kinds = items.elts if isinstance(items, ast.Tuple) else [items]
                return type(value) is tuple and len(value) == len(kinds) and all(map(self._fits, value, kinds))
            case ast.Subscript(ast.Name(name), ast.Tuple([key, item])):
                pairs = value.items() if isinstance(value, _NAMES[name]) else [(None, None)]
                return all(self._fits(k, key) and self._fits(v, item) for k, v in pairs)
            case ast.Subscript(ast.Name(name), item):
                return self._fits_items(value, name, item)
            case ast.Name("float"):
                return type(value) in (int, float)
            case ast.Subscript(ast.Attribute(ast.Name("array")) as name, ast.Name("Any")):
                return type(value) is _named(name)
            case ast.Subscript(ast.Attribute(ast.Name("collections")) as name, ast.Tuple([key, item])):
                pairs = value.items() if type(value) is _named(name) else [(None, None)]
                return all(self._fits(k, key) and self._fits(v, item) for k, v in pairs)
            case ast.Subscript(ast.Attribute(ast.Name("collections")) as name, key):
                return type(value) is _named(name) and all(self._fits(each, key) for each in value)
            case ast.Subscript():
                return _fits_array(value, _named(node))
        kind = _named(node)  # A class: int, datetime.date.
        return isinstance(value, kind) if issubclass(kind, _FAMILIES) else type(value) is kind

    def _fits_items(self, value: Any, name: str, item: ast.expr) -> bool:
        return isinstance(value, _NAMES[name]) and all(self._fits(each, item) for each in value)

    def _fits_class(self, value: Any, known: TypeDescription) -> bool:
        text = known.accepts if self._sent else known.gives
        if text is not None:
            return self.fits(value, text)
        fields = {field.name: field.accepts if self._sent else field.gives for field in known.fields}
        needed = {field.name for field in known.fields if (field.required if self._sent else field.always)}
        return (
            isinstance(value, dict)
            and needed <= value.keys() <= fields.keys()
            and all(self.fits(each, fields[name]) for name, each in value.items())
        )


def _named(node: ast.expr) -> Any:
    return without_aliases(eval(compile(ast.Expression(node), "", "eval"), {}, dict(_NAMES)))


def _fits_array(value: Any, kind: Any) -> bool:
    """Return True if a value is of a type such as ``numpy.ndarray[tuple[int], numpy.dtype[numpy.uint8]]``."""
    assert typing.get_origin(kind) is numpy.ndarray, kind
    shape, dtype = typing.get_args(kind)
    lengths = typing.get_args(shape)
    scalar = typing.get_args(dtype)[0] if typing.get_args(dtype) else Any
    scalars = typing.get_args(scalar) if isinstance(scalar, types.UnionType) else (scalar,)
    dtypes = [typing.get_origin(each) or each for each in scalars]
    return (
        isinstance(value, numpy.ndarray)
        and (... in lengths or not lengths or len(lengths) == value.ndim)
        and any(each is Any or issubclass(value.dtype.type, each) for each in dtypes)
    )
