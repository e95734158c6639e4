"""Hooks that let json, pydantic and FastAPI serialize containers of a store, as plain copies."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from typing import Any

from shmrpc.values.references import StoredObject


def install() -> None:
    """Install the hooks of json and, if the program has imported it, of FastAPI, in this process. Idempotent."""
    if not hasattr(json.JSONEncoder.default, "_of_shmrpc"):
        json.JSONEncoder.default = _default_after(json.JSONEncoder.default)  # type: ignore[method-assign]
    encoders = sys.modules.get("fastapi.encoders")
    by_class = getattr(encoders, "encoders_by_class_tuples", None)
    if encoders is not None and isinstance(by_class, dict) and _for_fastapi not in by_class:
        by_class[_for_fastapi] = (StoredObject,)


def _default_after(refuse: Any) -> Any:
    """Return a ``JSONEncoder.default`` for containers, which leaves other values to the previous one, ``refuse``."""

    @functools.wraps(refuse)
    def default(self: json.JSONEncoder, o: Any) -> Any:
        return o._copy() if isinstance(o, StoredObject) else refuse(self, o)

    default._of_shmrpc = True  # type: ignore[attr-defined]
    return default


def _for_fastapi(value: StoredObject) -> Any:
    """Return a container as FastAPI serializes its plain copy."""
    return sys.modules["fastapi.encoders"].jsonable_encoder(value._copy())


@functools.cache
def pydantic_serializer() -> Any:
    """Return the serializer that pydantic uses where no type is declared. Raises AttributeError without pydantic."""
    try:
        core: Any = importlib.import_module("pydantic_core")
    except ImportError as error:
        raise AttributeError(f"there is no pydantic: {error}") from None
    copied = core.core_schema.plain_serializer_function_ser_schema(lambda value: value._copy())
    return core.SchemaSerializer(core.core_schema.any_schema(serialization=copied))
