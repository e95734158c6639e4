"""Whether a value is what the text of a type says. Written without msgspec, to check what was made with it."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import datetime
import decimal
import uuid
from typing import Any

from shmrpc.introspection.describe import TypeDescription

_NAMES = {
    **vars(builtins),
    "datetime": datetime,
    "decimal": decimal,
    "uuid": uuid,
    "Sequence": collections.abc.Sequence,
    "AbstractSet": collections.abc.Set,
    "Mapping": collections.abc.Mapping,
}


class Types:
    """The classes of a description, for one direction."""

    def __init__(self, types: list[TypeDescription], *, sent: bool) -> None:
        self._types = {each.input_name if sent else each.name: each for each in types}
        self._sent = sent

    def fits(self, value: Any, text: str) -> bool:
        """Whether the value is of the type that the text names."""
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
        kind = eval(compile(ast.Expression(node), "", "eval"), {}, dict(_NAMES))  # A class: int, datetime.date.
        return type(value) is kind

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
