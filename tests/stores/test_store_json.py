"""Containers of a store where programs make JSON of values: each is taken for its plain copy."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import fastapi.encoders
import pydantic
import pytest

import shmrpc
import shmrpc.sync

#: A name that no other run of these tests has.
OURS = f"storejson{os.getpid()}"


@shmrpc.shared
@dataclasses.dataclass
class Player:
    """An object."""

    name: str = "ada"
    items: list[int] = dataclasses.field(default_factory=lambda: [1])


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS) as opened:
        opened.update(
            dict={"a": [1, {"b": 2}]}, list=[1, [2]], tuple=(1, {"n": [1]}), nested=({"a": ({"b": []},)},), set={1}
        )
        opened["object"] = Player()
        yield opened


KINDS = ["dict", "list", "tuple", "nested"]


@pytest.mark.parametrize("kind", KINDS)
def test_json_takes_containers(s: shmrpc.sync.Store, kind: str) -> None:
    plain = copy.deepcopy(s[kind])
    assert json.dumps(s[kind]) == json.dumps(plain)
    assert json.dumps([s[kind]], indent=2, sort_keys=True) == json.dumps([plain], indent=2, sort_keys=True)
    assert json.JSONEncoder().encode(s[kind]) == json.dumps(plain)


class Encoder(json.JSONEncoder):
    def default(self, o: Any) -> Any:
        return "a set" if isinstance(o, (set, frozenset)) else super().default(o)


def test_json_refuses_what_it_refuses_of_plain_values(s: shmrpc.sync.Store) -> None:
    for value in (s["set"], {1}, object()):
        with pytest.raises(TypeError, match="is not JSON serializable"):
            json.dumps(value)
    assert json.dumps([{1}, s["dict"]], cls=Encoder) == '["a set", {"a": [1, {"b": 2}]}]'
    assert json.dumps(s["list"], default=lambda value: "of the program") == '"of the program"'


@pytest.mark.parametrize("kind", [*KINDS, "set", "object"])
def test_pydantic_takes_containers_where_no_type_is_declared(s: shmrpc.sync.Store, kind: str) -> None:
    plain = copy.deepcopy(s[kind])
    for declared in (object, Any):
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(declared)
        assert adapter.dump_json(s[kind]) == adapter.dump_json(plain)
        assert adapter.dump_python([s[kind]], mode="json") == adapter.dump_python([plain], mode="json")


def test_pydantic_takes_containers_for_declared_types(s: shmrpc.sync.Store) -> None:
    class Answer(pydantic.BaseModel):
        values: dict[str, list[Any]]
        members: set[int]
        numbers: list[Any]

    answer = Answer(values=s["dict"], members=s["set"], numbers=s["list"])
    assert json.loads(answer.model_dump_json()) == {
        "values": {"a": [1, {"b": 2}]},
        "members": [1],
        "numbers": [1, [2]],
    }


@pytest.mark.parametrize("kind", [*KINDS, "set", "object"])
def test_fastapi_takes_containers(s: shmrpc.sync.Store, kind: str) -> None:
    plain = copy.deepcopy(s[kind])
    assert fastapi.encoders.jsonable_encoder({"it": s[kind]}) == fastapi.encoders.jsonable_encoder({"it": plain})


@pytest.mark.parametrize("kind", [*KINDS, "set", "object"])
def test_a_copy_of_the_standard_library_is_plain_throughout(s: shmrpc.sync.Store, kind: str) -> None:
    def check(value: Any) -> None:
        assert not type(value).__module__.startswith("shmrpc.")
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            check(each)

    check(copy.deepcopy(s[kind]))


def test_stores_need_no_pydantic() -> None:
    code = f"""
import sys
sys.modules["pydantic_core"] = None
import json, shmrpc.sync
with shmrpc.sync.store({OURS + ".without"!r}) as s:
    s["a"] = [1]
    print(json.dumps(s["a"]), hasattr(s["a"], "__pydantic_serializer__"), "fastapi" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "[1] False False\n", done.stderr
