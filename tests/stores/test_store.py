"""Stores: Python's containers in shared memory, which behave as plain ones and are changed by many processes."""

from __future__ import annotations

import array
import asyncio
import collections
import datetime
import decimal
import enum
import json
import math
import os
import pickle
import types
import uuid
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread

#: A name that no other run of these tests has.
OURS = f"store{os.getpid()}"
UTC = datetime.UTC
EAST = datetime.timezone(datetime.timedelta(hours=2))


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS, max_memory="16MiB") as opened:
        yield opened


class Number(enum.IntEnum):
    one = 1


class Text(str):
    """A str of a class of its own."""


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "below": -1,
    "48 bits": 2**47 - 1,
    "49 bits": 2**47,
    "64 bits": -(2**63),
    "200 bits": 2**200,
    "10,000 bits": -(2**10_000) + 1,
    "float": 1.5,
    "no zero": -0.0,
    "infinite": -math.inf,
    "tiny": 5e-324,
    "complex": 1 + 2j,
    "empty text": "",
    "short text": "abc",
    "six bytes": "äöü",
    "text": "x" * 100_000,
    "letters beyond": "\U0001f600 and a zero \0 in it",
    "empty bytes": b"",
    "short bytes": b"\0\0\0",
    "bytes": b"y" * 300_000,
    "decimal": decimal.Decimal("1.50"),
    "slice": slice(1, None, 2),
    "range": range(10, 0, -3),
    "date": datetime.date(2026, 1, 2),
    "time": datetime.time(1, 2, 3, 4),
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    "datetime with a zone": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "timedelta": datetime.timedelta(days=-1, microseconds=1),
    "timezone": datetime.timezone(datetime.timedelta(hours=-3)),
    "list": [1, "two", [3.0, [None]]],
    "empty list": [],
    "tuple": (1, (2, ("three",))),
    "empty tuple": (),
    "tuple of a list": (1, [2, 3]),
    "dict": {"a": 1, 2: "b", None: {"c": {}}},
    "set": {1, "a", (2, 3)},
    "empty set": set(),
    "frozenset": frozenset({1, frozenset({2})}),
    "bytearray": bytearray(b"z" * 5_000),
    "empty bytearray": bytearray(),
}


def _plain(value: Any) -> Any:
    """Return a value from a store as the plain value that was put in."""
    if isinstance(value, memoryview):
        return bytearray(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.copy() if type(value).__name__.startswith("Shared") else value


def _is_same(one: Any, other: Any) -> bool:
    # Equal and written alike, in whatever order: that of a set is each process's own.
    return bool(one == other) and type(one) is type(other) and sorted(repr(one)) == sorted(repr(other))


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_come_out_as_they_were_put_in(s: shmrpc.sync.Store, value: Any) -> None:
    s["it"] = value
    s["nested"] = [{"in": (value, [value])}]
    assert _is_same(_plain(s["it"]), value)
    inner = s["nested"][0]["in"]
    assert _is_same(_plain(inner[0]), value)
    assert _is_same(_plain(inner[1][0]), value)
    assert s.copy() == {"it": value, "nested": [{"in": (value, [value])}]}


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_another_process_sees_what_is_put_in(s: shmrpc.sync.Store, other: MemberProcess, value: Any) -> None:
    s["it"] = value
    other.do(f"import datetime; from decimal import Decimal; s = sync.attach({OURS!r}); got = s.copy()['it']")
    other.do("inf = float('inf')")
    assert other.do(f"result = got == {value!r} and type(got).__name__") == type(value).__name__
    other.do("s['back'] = got; s.close()")
    assert _is_same(_plain(s["back"]), value)


def test_an_int_that_is_too_large_for_decimal_is_a_value_and_a_key(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    large = 7**100_000
    s["it"] = {"value": large, large: -large, (large,): 1}
    assert s["it"].copy() == {"value": large, large: -large, (large,): 1}
    assert shmrpc.atomic.add(s["it"], "value", 1) == large + 1
    other.do(f"s = sync.attach({OURS!r}); large = 7**100_000")
    assert other.do("result = [s['it']['value'] == large + 1, s['it'][large] == -large, s['it'][large,]]") == [
        True,
        True,
        1,
    ]
    other.do("s.close()")


def test_an_unsupported_value_is_refused_and_changes_nothing(s: shmrpc.sync.Store) -> None:
    s["it"] = [1]
    for value in (object(), open, lambda: 0, [1, object()], {"a": {"b": object()}}, np.array([object()])):
        with pytest.raises(shmrpc.EncodeError):
            s["it"] = value
        with pytest.raises(shmrpc.EncodeError):
            s["it"].append(value)
    assert s.copy() == {"it": [1]}


def test_a_value_that_contains_itself_is_refused(s: shmrpc.sync.Store) -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with pytest.raises(RecursionError):
        s["it"] = cyclic
    assert len(s) == 0


def test_values_of_other_types_are_pickled_where_that_was_asked_for(other: MemberProcess) -> None:
    value = collections.Counter("abc"), types.SimpleNamespace(a=1)
    with shmrpc.sync.store(OURS, pickle=True) as s:
        s["it"] = [value[1]]
        assert s["it"][0] == value[1]
        with pytest.raises(RuntimeError, match="LocalProtocolError: .*open it with pickle=True here too"):
            other.do(f"s = sync.store({OURS!r}); s['it'].copy()")
        other.do("s.close()")


def test_ids_and_uuids_are_values_as_calls_have_them(s: shmrpc.sync.Store) -> None:
    value = uuid.UUID(int=5)
    s["it"] = value
    assert s["it"] == value


@pytest.mark.parametrize("text", ["\ud800", "a long text with \udcff in it"], ids=["short", "long"])
def test_text_that_is_no_unicode_is_refused(s: shmrpc.sync.Store, text: str) -> None:
    with pytest.raises(shmrpc.EncodeError, match="lone surrogates"):
        s["it"] = text
    with pytest.raises(shmrpc.EncodeError, match="lone surrogates"):
        s[text] = 1
    with pytest.raises(shmrpc.EncodeError, match="lone surrogates"):
        s[text, 1] = 1
    assert len(s) == 0


# --- proxies beside plain objects ---

Operation = Callable[[Any], Any]


def _getitem(index: Any) -> Operation:
    return lambda it: it[index]


def _has(member: Any) -> Operation:
    return lambda it: member in it


def _calls(name: str, *given: Any) -> Operation:
    return lambda it: getattr(it, name)(*given)


def _with_itself(operator: str) -> Operation:
    return lambda it: _operated(it, operator, it)


def _before(operator: str) -> Operation:
    return lambda it: _operated({1, 9}, operator, it)


def _operates_frozen(operator: str) -> Operation:
    return lambda it: _operated(it, operator, frozenset({1, 9})) == _operated(set(it), operator, {1, 9})


def _in_place_itself(name: str) -> Operation:
    return lambda it: getattr(it, name)(it) is it


def _operates(operator: str, other: Any) -> Operation:
    return lambda it: _operated(it, operator, other)


def _set(index: Any, value: Any) -> Operation:
    def operate(it: Any) -> None:
        it[index] = value

    return operate


def _delete(index: Any) -> Operation:
    def operate(it: Any) -> None:
        del it[index]

    return operate


def _in_place(name: str, value: Any) -> Operation:
    def operate(it: Any) -> bool:
        return getattr(it, name)(value) is it

    return operate


def _result(operate: Operation, it: Any) -> Any:
    try:
        result = operate(it)
    except Exception as error:
        return type(error)
    if isinstance(result, Iterator):
        result = list(result)
    return _deep(result)


def _deep(result: Any) -> Any:
    if isinstance(result, list):
        return [_deep(each) for each in result]
    if isinstance(result, tuple):
        return tuple(map(_deep, result))
    return result.copy() if type(result).__name__.startswith("Shared") else result


def _check(s: shmrpc.sync.Store, plain: Any, operate: Operation) -> None:
    s["it"] = plain
    proxy = s["it"]
    expected, got = _result(operate, plain), _result(operate, proxy)
    assert got == expected
    assert type(got) is type(expected)
    assert proxy == plain
    assert proxy.copy() == plain
    if not isinstance(plain, set):
        assert repr(proxy) == repr(plain)
    assert len(proxy) == len(plain)


_SLICES = [
    slice(None), slice(1, 3), slice(-3, None), slice(None, -2), slice(None, None, 2), slice(None, None, -1),
    slice(4, 0, -2), slice(3, 1), slice(100, 200), slice(-100, 2), slice(1, 100, 3), slice(None, None, 0),
    slice("a", None),
]  # fmt: skip

LIST: dict[str, Operation] = {
    **{f"[{i}]": _getitem(i) for i in (0, -1, 5, -6, 6, -7, True, 2**70, -(2**70), "a", None, 1.5)},
    **{f"[{i}] =": _set(i, ["new", 1]) for i in (0, -1, 5, -6, 6, -7, True, 2**70, "a", 1.5)},
    **{f"del [{i}]": _delete(i) for i in (0, -1, 5, -6, 6, -7, True, 2**70, "a", 1.5)},
    **{f"[{i}]": _getitem(i) for i in _SLICES},
    **{f"[{i}] = three": _set(i, (7, "eight", [9])) for i in _SLICES},
    **{f"[{i}] = none": _set(i, []) for i in _SLICES},
    **{f"[{i}] = many": _set(i, range(20)) for i in _SLICES},
    "[::2] = a number": _set(slice(None, None, 2), 5),
    "[:] = a number": _set(slice(None), 5),
    **{f"del [{i}]": _delete(i) for i in _SLICES},
    **{f"insert {i}": _calls("insert", i, "new") for i in (0, 3, 6, 100, -1, -6, -100, True)},
    "insert at a text": lambda it: it.insert("a", 1),
    "append": lambda it: it.append({"a": [1]}),
    "append nothing": lambda it: it.append(),
    "extend": lambda it: it.extend(x for x in (1, 2)),
    "extend with itself": lambda it: it.extend(it),
    "extend with a text": lambda it: it.extend("abc"),
    "extend with a number": lambda it: it.extend(5),
    **{f"pop {i}": _calls("pop", i) for i in (0, -1, 3, -6, 6, -7, 2**70, "a")},
    "pop": lambda it: it.pop(),
    "pop until none is left": lambda it: [it.pop() for _ in range(7)],
    "remove": lambda it: it.remove(3),
    "remove what is equal": lambda it: it.remove(3.0),
    "remove a list": lambda it: it.remove([1, [2]]),
    "remove what is not there": lambda it: it.remove("no"),
    "index": lambda it: it.index(3),
    "index from": lambda it: it.index(3, 2),
    "index from behind": lambda it: it.index(3, -2, -1),
    "index beyond": lambda it: it.index(3, 4),
    "index of what is not there": lambda it: it.index("no"),
    "count": lambda it: it.count(3),
    "in": lambda it: [3 in it, 3.0 in it, "no" in it, [1, [2]] in it, None in it],
    "clear": lambda it: it.clear(),
    "reverse": lambda it: it.reverse(),
    "reversed": lambda it: list(reversed(it)),
    "sort by key": lambda it: it.sort(key=str),
    "sort backwards": lambda it: it.sort(key=repr, reverse=True),
    "sort by what raises": lambda it: it.sort(key=lambda each: 1 // 0),
    "sort by place": lambda it: it.sort("a"),
    "sorted": lambda it: sorted(it, key=repr),
    "+": lambda it: it + [1],  # noqa: RUF005
    "+ a tuple": lambda it: it + (1,),  # noqa: RUF005
    "+ itself": lambda it: it + it,
    "before +": lambda it: [1] + it,  # noqa: RUF005
    "+=": _in_place("__iadd__", (1, 2)),
    "+= itself": lambda it: _in_place("__iadd__", it)(it),
    "+= a number": _in_place("__iadd__", 5),
    "*=": _in_place("__imul__", 3),
    "*= 0": _in_place("__imul__", 0),
    "*= -1": _in_place("__imul__", -1),
    "*= a text": lambda it: it.__imul__("a"),
    "*": lambda it: it * 2,
    "before *": lambda it: 2 * it,
    "* a text": lambda it: it * "a",
    "==": lambda it: [it == [1], it == it[:], it == tuple(it), it != [1], it == None],  # noqa: E711
    "<": lambda it: [it < [9], it <= [0], it > [0, 0], it >= it[:]],
    "< a tuple": lambda it: it < (9,),
    "< a number": lambda it: it < 5,
    "copy": lambda it: it.copy(),
    "len": lambda it: len(it),
    "bool": lambda it: bool(it),
    "hash": lambda it: hash(it),
    "unpacked": lambda it: [*it],
    "matched": lambda it: _matched(it),
    "nested": lambda it: it[4].append(5),
    "nested more": lambda it: it[4][1].extend([5, 6]),
    "nested +=": lambda it: it[4].__iadd__([1]) is None,
    "augmented": lambda it: _augment(it, 0),
    "swapped": lambda it: _swap(it, 0, 3),
    "format": lambda it: f"{it}",
    "json of a copy": lambda it: json.dumps(it.copy()),
    "isinstance": lambda it: isinstance(it, MutableSequence),
    "sum": lambda it: sum(it[:2]),
    "max": lambda it: max(it[0], it[1]),
    "attribute": lambda it: it.no,
    "set an attribute": lambda it: setattr(it, "no", 1),
}  # fmt: skip


def _matched(it: Any) -> Any:
    match it:
        case [first, *_, last]:
            return [first, last]
    return None


def _augment(it: Any, key: Any) -> None:
    it[key] += 5


def _swap(it: Any, one: Any, other: Any) -> None:
    it[one], it[other] = it[other], it[one]


@pytest.mark.parametrize("operate", LIST.values(), ids=LIST)
def test_a_list_does_what_a_plain_one_does(s: shmrpc.sync.Store, operate: Operation) -> None:
    _check(s, [3, 1, 3, "text", [1, [2]], None], operate)


@pytest.mark.slow
@pytest.mark.parametrize("operate", LIST.values(), ids=LIST)
def test_a_list_does_it_within_a_transaction(s: shmrpc.sync.Store, operate: Operation) -> None:
    with s.transaction():
        _check(s, [3, 1, 3, "text", [1, [2]], None], operate)
    with pytest.raises(ZeroDivisionError), s.transaction():
        before = s.copy()
        _check(s, [3, 1, 3, "text", [1, [2]], None], operate)
        raise ZeroDivisionError
    assert s.copy() == before


DICT: dict[str, Operation] = {
    **{f"[{k!r}]": _getitem(k) for k in ("a", 1, 1.0, True, (1, 2), None, 2.5, "no", 3)},
    **{f"[{k!r}] =": _set(k, {"new": [1]}) for k in ("a", 1, 1.0, True, (1, 2), None, 2.5, "no", 3)},
    **{f"del [{k!r}]": _delete(k) for k in ("a", 1, 1.0, True, (1, 2), None, 2.5, "no", 3)},
    "a list as a key": lambda it: it[[1]],
    "set a list as a key": _set([1], 1),
    "delete a list as a key": _delete([1]),
    "a list in": lambda it: [1] in it,
    "get a list": lambda it: it.get([1]),
    "in": lambda it: ["a" in it, "no" in it, 1.0 in it, (1, 2) in it, (1.0, True + 1) in it],
    "get": lambda it: [it.get("a"), it.get("no"), it.get("no", 5), it.get(True)],
    "pop": lambda it: it.pop("a"),
    "pop nothing": lambda it: it.pop("no"),
    "pop a default": lambda it: it.pop("no", None),
    "pop a container": lambda it: it.pop(1),
    "popitem": lambda it: it.popitem(),
    "popitem until none is left": lambda it: [it.popitem() for _ in range(6)],
    "setdefault": lambda it: it.setdefault("a", 5),
    "setdefault of a new one": lambda it: it.setdefault("new", [5]),
    "setdefault of none": lambda it: it.setdefault("new"),
    "setdefault and change": lambda it: it.setdefault("new", []).append(5),
    "update": lambda it: it.update({"a": 5, "new": 6}),
    "update by pairs": lambda it: it.update([("a", 5), ("new", 6)], more=7),
    "update by names": lambda it: it.update(a=5, b=6),
    "update with itself": lambda it: it.update(it),
    "update with nothing": lambda it: it.update(),
    "update with a number": lambda it: it.update(5),
    "update with what is no pair": lambda it: it.update([(1, 2, 3)]),
    "update with two": lambda it: it.update({}, {}),
    "|=": _in_place("__ior__", {"a": 5, "new": 6}),
    "|= pairs": _in_place("__ior__", [("a", 5), ("new", 6)]),
    "|": lambda it: it | {"a": 5, "new": 6},
    "| pairs": lambda it: it | [("a", 5)],
    "before |": lambda it: {"a": 5, "new": 6} | it,
    "| itself": lambda it: it | it,
    "clear": lambda it: it.clear(),
    "keys": lambda it: list(it.keys()),
    "values": lambda it: list(it.values()),
    "items": lambda it: list(it.items()),
    "keys &": lambda it: sorted(it.keys() & {"a", "no"}),
    "item in items": lambda it: [("a", 1) in it.items(), ("a", 2) in it.items()],
    "value in values": lambda it: [1 in it.values(), 99 in it.values()],
    "reversed": lambda it: list(reversed(it)),
    "reversed keys": lambda it: list(reversed(it.keys())),
    "iter": lambda it: list(it),
    "len": lambda it: len(it),
    "bool": lambda it: bool(it),
    "hash": lambda it: hash(it),
    "==": lambda it: [it == {}, it == dict(it), it != {}, it == [1]],
    "<": lambda it: it < {},
    "copy": lambda it: it.copy(),
    "dict()": lambda it: dict(it),
    "**": lambda it: dict(**{k: v for k, v in it.items() if isinstance(k, str)}),
    "{**}": lambda it: {**it},
    "augmented": lambda it: _augment(it, "a"),
    "augmented missing": lambda it: _augment(it, "no"),
    "nested": lambda it: it[1].append(5),
    "deeply nested": lambda it: it[(1, 2)]["x"].__setitem__("y", {"z": ()}),
    "set what is there to itself": lambda it: _set(1, it[1])(it),
    "moved": lambda it: _set("moved", it.pop(1))(it),
    "swapped": lambda it: _swap(it, "a", 1),
    "deleted and set again": lambda it: [_delete("a")(it), _set("a", 2)(it), list(it)],
    "matched": lambda it: _matched_mapping(it),
    "isinstance": lambda it: isinstance(it, MutableMapping),
    "fromkeys": lambda it: type(it.fromkeys([1])) is type(it) or None,
    "many": lambda it: [_set(number % 300, number)(it) for number in range(1000)] and list(it),
    "many come and go": lambda it: [it.pop(n // 2, 0) if n % 3 else _set(n, n)(it) for n in range(999)] and list(it),
    "attribute": lambda it: it.no,
}  # fmt: skip
del DICT["fromkeys"]  # A class of proxies makes none that are in no store.


def _matched_mapping(it: Any) -> Any:
    match it:
        case {"a": found, **rest}:
            return [found, len(rest)]
    return None


_DICT = {"a": 1, 1: [1, 2], (1, 2): {"x": {}}, None: "none", 2.5: decimal.Decimal(1)}


def test_a_slice_is_no_key(s: shmrpc.sync.Store) -> None:
    """A plain dict has raised KeyError since CPython 3.12, where a slice can be hashed."""
    s["it"] = {"a": 1}
    for each in (s, s["it"]):
        with pytest.raises(TypeError, match="slice"):
            each[1:2]


@pytest.mark.parametrize("operate", DICT.values(), ids=DICT)
def test_a_dict_does_what_a_plain_one_does(s: shmrpc.sync.Store, operate: Operation) -> None:
    _check(s, {**_DICT, 1: [1, 2], (1, 2): {"x": {}}}, operate)


@pytest.mark.parametrize("operate", DICT.values(), ids=DICT)
def test_a_dict_does_it_within_a_transaction(s: shmrpc.sync.Store, operate: Operation) -> None:
    with s.transaction():
        _check(s, {**_DICT, 1: [1, 2], (1, 2): {"x": {}}}, operate)


@pytest.mark.parametrize("operate", DICT.values(), ids=DICT)
def test_a_store_does_what_a_dict_does(s: shmrpc.sync.Store, operate: Operation) -> None:
    if operate in (DICT["hash"], DICT["bool"]):
        assert operate(s) is not None  # A store is a handle too: it has an identity.
        return
    plain = {**_DICT, 1: [1, 2], (1, 2): {"x": {}}}
    s.update(plain)
    expected, got = _result(operate, plain), _result(operate, s)
    if operate is not DICT["|="] and operate is not DICT["|= pairs"]:
        assert got == expected
    assert s == plain and list(s) == list(plain)


SET: dict[str, Operation] = {
    **{f"add {m!r}": _calls("add", m) for m in (1, 1.0, True, 9, "a", "new", (1, 2), frozenset({1}), None)},
    **{f"{m!r} in": _has(m) for m in (1, 1.0, True, 9, "a", (1, 2), frozenset({1}), None)},
    **{f"discard {m!r}": _calls("discard", m) for m in (1, 1.0, 9, (1, 2), frozenset({5}))},
    **{f"remove {m!r}": _calls("remove", m) for m in (1, 1.0, 9, (1, 2), frozenset({5}))},
    "add a list": lambda it: it.add([1]),
    "a list in": lambda it: [1] in it,
    "remove a list": lambda it: it.remove([1]),
    "discard a list": lambda it: it.discard([1]),
    "pop until none is left": lambda it: len({it.pop() for _ in range(5)}),
    "pop of none": lambda it: [it.pop() for _ in range(6)],
    "clear": lambda it: it.clear(),
    "update": lambda it: it.update([1, 9], {"b"}, (x for x in "xy")),
    "update with nothing": lambda it: it.update(),
    "update with itself": lambda it: it.update(it),
    "update with a number": lambda it: it.update(5),
    "update with a list of lists": lambda it: it.update([[1]]),
    "difference_update": lambda it: it.difference_update([1, 9], {"a"}),
    "intersection_update": lambda it: it.intersection_update([1, 9, "a"], {"a"}),
    "symmetric_difference_update": lambda it: it.symmetric_difference_update([1, 9, 9]),
    "difference_update with itself": lambda it: it.difference_update(it),
    "intersection_update with itself": lambda it: it.intersection_update(it),
    "symmetric_difference_update with itself": lambda it: it.symmetric_difference_update(it),
    **{f"{name} a set": _in_place(name, {1, 9}) for name in ("__ior__", "__iand__", "__isub__", "__ixor__")},
    **{f"{name} itself": _in_place_itself(name) for name in ("__ior__", "__iand__", "__isub__", "__ixor__")},
    "|= a list": lambda it: _operated(it, "|=", [1, 9]),
    "&= a list": lambda it: _operated(it, "&=", [1, 9]),
    "-= a list": lambda it: _operated(it, "-=", [1, 9]),
    "^= a list": lambda it: _operated(it, "^=", [1, 9]),
    **{f"{op} a set": _operates(op, {1, 9}) for op in "|&-^"},
    **{f"{op} a frozenset": _operates_frozen(op) for op in "|&-^"},
    **{f"{op} a list": _operates(op, [1, 9]) for op in "|&-^"},
    **{f"{op} itself": _with_itself(op) for op in "|&-^"},
    **{f"before {op}": _before(op) for op in "|&-^"},
    "union": lambda it: it.union([1, 9], "xy"),
    "intersection": lambda it: it.intersection([1, 9]),
    "difference": lambda it: it.difference([1, 9]),
    "symmetric_difference": lambda it: it.symmetric_difference([1, 9]),
    "issubset": lambda it: [it.issubset([1]), it.issubset([*it, 9])],
    "issuperset": lambda it: [it.issuperset([1]), it.issuperset([9])],
    "isdisjoint": lambda it: [it.isdisjoint([1]), it.isdisjoint([9])],
    "<": lambda it: [it < {1}, it <= set(it), it > {1}, it >= {9}, it < it],
    "< a list": lambda it: it < [1],
    "==": lambda it: [it == {1}, it == set(it), it == frozenset(it), it != {1}, it == [1]],
    "hash": lambda it: hash(it),
    "len": lambda it: len(it),
    "bool": lambda it: bool(it),
    "copy": lambda it: it.copy(),
    "isinstance": lambda it: isinstance(it, MutableSet),
    "sorted": lambda it: sorted(it, key=repr),
    "many": lambda it: [it.add(number % 300) for number in range(1000)] and len(it),
}  # fmt: skip


def _operated(one: Any, operator: str, other: Any) -> Any:
    if operator.endswith("="):
        names = {"one": one, "other": other}
        exec(f"one {operator} other", names)
        return names["one"] is one
    return eval(f"one {operator} other", {"one": one, "other": other})


@pytest.mark.slow
@pytest.mark.parametrize("operate", SET.values(), ids=SET)
def test_a_set_does_what_a_plain_one_does(s: shmrpc.sync.Store, operate: Operation) -> None:
    _check(s, {1, "a", (1, 2), frozenset({1}), None}, operate)


def test_an_operation_that_raises_half_way_changes_nothing(s: shmrpc.sync.Store) -> None:
    """Where a plain list has changed a part by then."""
    s["it"] = [3, 1, 2, "text"]
    with pytest.raises(TypeError):
        s["it"].sort()
    with pytest.raises(ZeroDivisionError):
        s["it"].extend(1 // (2 - x) for x in range(5))
    with pytest.raises(shmrpc.EncodeError):
        s["it"][::2] = [5, object()]
    assert s["it"] == [3, 1, 2, "text"]
    s["dict"] = {"a": 1}
    with pytest.raises(shmrpc.EncodeError):
        s["dict"].update(a=2, b=object())
    with pytest.raises(TypeError):
        s["dict"] |= [("a", 2), ([], 3)]
    assert s["dict"] == {"a": 1}
    s["set"] = {1}
    with pytest.raises(TypeError):
        s["set"].update([2, object()])
    assert s["set"] == {1}


def test_sorted_objects_are_moved_and_stay_the_same(s: shmrpc.sync.Store) -> None:
    s["it"] = [[3], [1], [2]]
    three = s["it"][0]
    s["it"].sort()
    three.append(4)
    assert s["it"] == [[1], [2], [3, 4]]
    s["it"].reverse()
    three.append(5)
    assert s["it"] == [[3, 4, 5], [2], [1]]


# --- keys ---

KEYS: list[list[Any]] = [
    [1, 1.0, True, decimal.Decimal(1), 1 + 0j, decimal.Decimal("1.0"), Number.one],
    [0, 0.0, -0.0, False, decimal.Decimal("-0"), 0j],
    [0.5, decimal.Decimal("0.5")],
    [2**70, float(2**70), decimal.Decimal(2**70)],
    [math.inf, decimal.Decimal("inf")],
    ["a", Text("a")],
    [(1, "a"), (1.0, "a"), (True, Text("a"))],
    [frozenset({1, 2}), frozenset({2.0, True})],
    [datetime.datetime(2026, 1, 1, 12, tzinfo=UTC), datetime.datetime(2026, 1, 1, 14, tzinfo=EAST)],
    [datetime.time(12, tzinfo=UTC), datetime.time(14, tzinfo=EAST)],
    [datetime.timedelta(hours=24), datetime.timedelta(days=1)],
    [UTC, datetime.timezone(datetime.timedelta(0))],
]
DIFFERENT: list[list[Any]] = [
    ["a", b"a"],
    [1, "1"],
    [None, False, "", 0.5],
    [0.1, decimal.Decimal("0.1")],
    [2**53 + 1, float(2**53)],
    [(1,), frozenset({1}), 1],
    [(), frozenset(), ((),)],
    [("ab", "c"), ("a", "bc")],
    [(1, (2,)), ((1, 2),), (1, 2)],
    [math.inf, -math.inf],
    [1j, 1, -1j],
    [datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=UTC)],
    [datetime.time(1), datetime.time(1, tzinfo=UTC)],
    [datetime.timedelta(1), datetime.time(0, 0, 1)],
    [2**47, 2**47 - 1, -(2**47), -(2**47) - 1],
]


def _types(value: Any) -> str:
    return f"{type(value).__name__}"


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: f"{_types(keys[0])}-{len(keys)}-{repr(keys[0])[:20]}")
def test_keys_that_are_equal_are_one_key(s: shmrpc.sync.Store, keys: list[Any]) -> None:
    assert len(set(keys)) == 1
    for first in keys:
        s["it"] = {first: "value"}
        for key in keys:
            assert key in s["it"]
            assert s["it"][key] == "value"
            s["it"][key] = "value"
            assert len(s["it"]) == 1
        del s["it"][keys[-1]]
        assert len(s["it"]) == 0


@pytest.mark.parametrize("keys", DIFFERENT, ids=lambda keys: "-".join(map(repr, keys))[:40].replace("datetime.", ""))
def test_keys_that_are_not_equal_are_different_keys(s: shmrpc.sync.Store, keys: list[Any]) -> None:
    assert len(set(keys)) == len(keys)
    plain = {key: number for number, key in enumerate(keys)}
    s["it"] = plain
    assert s["it"] == plain
    assert [type(key) for key in s["it"]] == [type(key) for key in plain]
    s["set"] = set(keys)
    assert s["set"] == set(keys)


def test_no_key_that_is_no_number_is_ever_lost(s: shmrpc.sync.Store) -> None:
    """In Python a NaN equals nothing, itself either, but is found by its identity; in a store all are one."""
    s["it"] = {math.nan: 1}
    assert s["it"][math.nan] == 1
    s["it"][decimal.Decimal("nan")] = 2
    assert len(s["it"]) == 1


@pytest.mark.parametrize("key", [object(), [1], {}, (1, []), Text, range(3)], ids=lambda key: type(key).__name__)
def test_an_invalid_key_is_refused(s: shmrpc.sync.Store, key: Any) -> None:
    with pytest.raises(TypeError):
        s[key] = 1
    with pytest.raises(TypeError):
        s["it"] = {"set": {key}} if key.__hash__ else {"key": s[key]}
    assert key.__hash__ is None or len(s) == 0


@pytest.mark.parametrize("text", ["1e999999999", "-1e999999999", "1e-999999999", "1.5e-100000"])
def test_a_decimal_with_too_many_digits_is_no_key(s: shmrpc.sync.Store, text: str) -> None:
    s["it"] = {decimal.Decimal("1e99999"): 1, decimal.Decimal("1e-99999"): 2, decimal.Decimal("0e999999999"): 3}
    assert (s["it"][10**99999], s["it"][decimal.Decimal("10e-100000")], s["it"][0]) == (1, 2, 3)
    for key in (decimal.Decimal(text), (1, decimal.Decimal(text))):
        with pytest.raises(TypeError, match="digits before or after the point"):
            s["it"][key] = 4
        with pytest.raises(TypeError, match="digits before or after the point"):
            key in s["it"]  # noqa: B015


def test_the_first_of_equal_keys_stays(s: shmrpc.sync.Store) -> None:
    s["it"] = {1: "a", "x": 0}
    s["it"][True] = "b"
    s["it"][1.0] = "c"
    assert repr(s["it"]) == "{1: 'c', 'x': 0}"


# --- changes during an iteration ---


def test_iterating_goes_over_what_was_there_when_it_began(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s.update(list=[1, 2, 3], dict={"a": 1, "b": 2}, set={1, 2, 3})
    over = [iter(s["list"]), iter(s["dict"].items()), iter(s["set"]), iter(s)]
    for each in over:
        next(each)
    other.do(f"s = sync.attach({OURS!r}); s['list'].clear(); s['dict']['c'] = 3; s['set'].add(4); s['more'] = 1")
    assert [len(list(each)) for each in over] == [2, 1, 2, 2]
    assert len(s["list"]) == 0 and len(s["dict"]) == 3 and len(s["set"]) == 4 and len(s) == 4


def test_a_proxy_sees_what_another_process_changes(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = {"a": [1, {"b": 2}]}
    inner, innermost = s["it"]["a"], s["it"]["a"][1]
    other.do(f"s = sync.attach({OURS!r}); s['it']['a'].insert(0, 'x' * 100); s['it']['a'][2]['b'] += 1")
    other.do("s['it']['a'].extend(range(10_000)); s['it']['c'] = None")
    assert innermost == {"b": 3} and len(inner) == 10_003 and inner[0] == "x" * 100
    innermost["b"] = [4]
    assert other.do("result = s['it']['a'][2].copy()") == {"b": [4]}


REPLACED: dict[str, str] = {
    "replaced": "s['it'] = [1]",
    "removed": "del s['it']",
    "taken": "s.pop('it')",
    "cleared": "s.clear()",
    "taken as the last": "s.popitem()",
}


@pytest.mark.parametrize("how", REPLACED.values(), ids=REPLACED)
def test_a_removed_object_raises_gone(s: shmrpc.sync.Store, other: MemberProcess, how: str) -> None:
    s["it"] = {"list": [1], "set": {1}, "dict": {}}
    it = s["it"]
    each = it, it["list"], it["set"], it["dict"]
    other.do(f"s = sync.attach({OURS!r}); {how}")
    uses: list[Operation] = [len, list, repr, lambda it: it.copy(), lambda it: it.clear(), lambda it: it == 1, bool]
    for proxy in each:
        for use in uses:
            with pytest.raises(shmrpc.ObjectDeleted, match=f"store '{OURS}' no longer has this"):
                use(proxy)
    for change in (_set("a", 1), _delete("a"), lambda it: it.update(a=1), lambda it: it["a"]):
        with pytest.raises(shmrpc.ObjectDeleted):
            change(it)
    with pytest.raises(shmrpc.ObjectDeleted):
        each[1].append(1)
    with pytest.raises(shmrpc.ObjectDeleted):
        each[2].add(1)


def test_a_place_that_is_used_again_is_another_object(s: shmrpc.sync.Store) -> None:
    kept = []
    for number in range(2_000):
        s["it"] = [number]
        kept.append(s["it"])
    for old in kept[:-1]:
        with pytest.raises(shmrpc.ObjectDeleted):
            old[0]
    assert kept[-1] == [1_999]


def test_a_removed_object_is_gone_in_its_transaction_and_back_if_that_fails(s: shmrpc.sync.Store) -> None:
    s["it"] = [1]
    it = s["it"]
    with pytest.raises(ZeroDivisionError), s.transaction():
        del s["it"]
        with pytest.raises(shmrpc.ObjectDeleted):
            len(it)
        s["it"] = [2]
        raise ZeroDivisionError
    assert it == [1] and s["it"] == it


# --- proxies as values ---


def test_a_proxy_that_is_put_into_a_store_is_copied(s: shmrpc.sync.Store) -> None:
    s["one"] = {"list": [1], "set": {2}}
    s["other"] = s["one"]
    s["third"] = [s["one"]["list"], (s["one"]["set"],)]
    s["one"]["list"].append(5)
    assert s["other"] == {"list": [1], "set": {2}}
    assert s["third"] == [[1], ({2},)]
    s["one"]["itself"] = s["one"]
    assert s["one"] == {"list": [1, 5], "set": {2}, "itself": {"list": [1, 5], "set": {2}}}


def test_a_proxy_of_another_store_is_copied(s: shmrpc.sync.Store) -> None:
    with shmrpc.sync.store(f"{OURS}b") as other:
        other["it"] = {"a": [1]}
        s["it"] = other["it"]
        other["it"]["a"].append(2)
        assert s["it"] == {"a": [1]} and other["it"] != s["it"]
        assert s["it"] == s["it"] and other["it"]["a"][:1] == s["it"]["a"]


def test_a_proxy_is_pickled_by_its_position(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = {"list": [1], "set": {1}, "dict": {}}
    sent = [pickle.dumps(each) for each in (s["it"], s["it"]["list"], s["it"]["set"])]
    other.do(f"import pickle; s = sync.attach({OURS!r}); got = [pickle.loads(each) for each in {sent!r}]")
    other.do("got[0]['new'] = 1; got[1].append(2); got[2].add(3)")
    assert s["it"] == {"list": [1, 2], "set": {1, 3}, "dict": {}, "new": 1}
    other.do("s.close(); del s, got")
    with pytest.raises(
        RuntimeError,
        match=f"LocalProtocolError: .* of store '{OURS}' arrived, and .* does not have the store open: first call ",
    ):
        other.do(f"pickle.loads({sent[0]!r})")


def test_a_proxy_arrives_by_a_queue_of_pickles_as_a_proxy(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    with shmrpc.sync.queue(f"{OURS}q", codec="pickle") as q:
        s["it"] = [1]
        other.do(f"s = sync.attach({OURS!r}); q = sync.queue({f'{OURS}q'!r}, codec='pickle')")
        q.put({"see": s["it"]})
        other.do("q.get(5)['see'].append(2); q.close()")
        assert s["it"] == [1, 2]


# --- copies and texts ---


def test_copies_are_plain_and_stay_as_they_were(s: shmrpc.sync.Store) -> None:
    s["it"] = {"list": [1, {2}], "dict": {"a": {}}, "array": np.arange(3), "bytes": bytearray(b"abc")}
    copied = s["it"].copy()
    s["it"]["list"][0] = 5
    s["it"]["array"][0] = 5
    s["it"]["bytes"][0] = 0
    assert copied["list"] == [1, {2}] and type(copied["list"]) is list and type(copied["list"][1]) is set
    assert (copied["array"] == [0, 1, 2]).all() and copied["bytes"] == bytearray(b"abc")
    copied["list"].append(1)
    copied["array"][1] = 7
    assert len(s["it"]["list"]) == 2 and s["it"]["array"][1] == 1


def test_copies_are_json(s: shmrpc.sync.Store) -> None:
    plain = {"a": [1, 2.5, None, True, "text"], "b": {"c": []}}
    s["it"] = plain
    assert json.dumps(s["it"].copy()) == json.dumps(plain)
    assert json.loads(json.dumps(s.copy())) == {"it": plain}


def test_a_store_says_what_it_is(s: shmrpc.sync.Store) -> None:
    s["it"] = 1
    assert OURS in repr(s)
    assert s == {"it": 1} and s != {} and s == s
    stats = s.stats()
    assert (stats.members, stats.holder, stats.max_memory) == (1, None, 16 << 20)
    assert 0 < stats.memory <= stats.max_memory and stats.free <= stats.memory
    assert hash(s) == hash(s)


def test_a_name_that_is_something_else_is_no_store(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    with pytest.raises(RuntimeError, match="NameConflict: .*store"):
        other.do(f"sync.queue({OURS!r})")
    with pytest.raises(RuntimeError, match="NameConflict: .*max_memory"):
        other.do(f"sync.store({OURS!r}, max_memory='32MiB')")
    with shmrpc.sync.queue(f"{OURS}q"), pytest.raises(shmrpc.NameConflict):
        shmrpc.sync.store(f"{OURS}q")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_memory": 1000}, ValueError),
        ({"max_memory": "a lot"}, ValueError),
        ({"max_memory": 1.5}, TypeError),
        ({"max_memory": "1TiB"}, ValueError),
        ({"busy_timeout": "long"}, TypeError),
        ({"busy_timeout": float("nan")}, ValueError),
        ({"pickle": 1}, TypeError),
    ],
    ids=str,
)
def test_invalid_options_are_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"store|{next(iter(arguments))}"):
        shmrpc.sync.store(OURS, **arguments)


def test_a_store_opens_anew_once_all_have_closed_it(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = 1
    other.do(f"s = sync.attach({OURS!r}); s['it'] += 1")
    with shmrpc.sync.store(OURS, max_memory="16MiB") as again:
        assert again["it"] == 2
    s.close()
    assert other.do("result = s['it']") == 2
    other.do("s.close()")
    with shmrpc.sync.store(OURS) as new:
        assert len(new) == 0


CLOSED: dict[str, Operation] = {
    "get": lambda s: s["it"],
    "set": _set("it", 1),
    "delete": _delete("it"),
    "in": lambda s: "it" in s,
    "len": len,
    "iterate": list,
    "copy": lambda s: s.copy(),
    "update": lambda s: s.update(a=1),
    "setdefault": lambda s: s.setdefault("a"),
    "transaction": lambda s: s.transaction().__enter__(),
    "put": lambda s: s.inbox.put(1),
    "take": lambda s: s.inbox.take(0),
    "read": lambda s: s.inbox.read(0),
    "has_messages": lambda s: s.inbox.has_messages(),
    "stats": lambda s: s.stats(),
    "changed": lambda s: s.wait_changed(0),
    "add": lambda s: shmrpc.atomic.add(s, "it", 1),
}


@pytest.mark.parametrize("use", CLOSED.values(), ids=CLOSED)
def test_a_closed_store_raises(use: Operation) -> None:
    s = shmrpc.sync.store(OURS)
    s["it"] = 1
    s.close()
    s.close()
    with pytest.raises(shmrpc.LocalProtocolError, match=f"store '{OURS}' is closed"):
        use(s)


@pytest.mark.parametrize(
    "use",
    [
        len,
        list,
        repr,
        lambda it: it["list"],
        lambda it: it.copy(),
        _set("a", 1),
        lambda it: it.update(a=1),
        lambda it: it.wait_changed(0),
    ],
    ids=["len", "list", "repr", "get", "copy", "set", "update", "wait_changed"],
)
def test_objects_of_a_closed_store_raise(use: Operation) -> None:
    with shmrpc.sync.store(OURS) as s:
        s["it"] = {"list": [1]}
        it = s["it"]
    with pytest.raises(shmrpc.LocalProtocolError, match=f"store '{OURS}' is closed"):
        use(it)


# --- buffers ---


@pytest.mark.parametrize("shape", [(), (0,), (3,), (7, 5), (1000, 100), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["u1", "<f8", ">i4", "c16", "?", "M8[ns]", "U5", "f2"])
def test_arrays_come_out_as_they_were(s: shmrpc.sync.Store, dtype: str, shape: tuple[int, ...]) -> None:
    sent = (np.arange(math.prod(shape)) % 2_000).reshape(shape).astype(dtype)
    s["it"] = sent
    got = s["it"]
    assert got.dtype == sent.dtype and got.shape == sent.shape and (got == sent).all()
    copied = s.copy()["it"]
    assert copied.dtype == sent.dtype and copied.shape == sent.shape and (copied == sent).all()


@pytest.mark.parametrize(
    "made",
    [
        lambda: np.arange(20).reshape(4, 5).T,
        lambda: np.arange(20)[::-3],
        lambda: np.asfortranarray(np.arange(20).reshape(4, 5)),
        lambda: np.broadcast_to(np.arange(3), (4, 3)),
        lambda: np.zeros(3, [("a", "i4"), ("b", "f8", (2,))]),
    ],
    ids=["transposed", "backwards", "by columns", "broadcast", "records"],
)
def test_arrays_however_they_lie_come_out_equal(s: shmrpc.sync.Store, made: Callable[[], Any]) -> None:
    s["it"] = made()
    assert s["it"].shape == made().shape and (s["it"] == made()).all()


def test_an_array_is_a_view_that_all_processes_change(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = np.zeros((40, 50))
    s["bytes"] = bytearray(100)
    view, text = s["it"], s["bytes"]
    other.do(f"s = sync.attach({OURS!r}); a = s['it']; a += 1; a[0, 0] = 5; s['bytes'][3:6] = b'abc'")
    assert view.sum() == 2_004 and bytes(text[3:6]) == b"abc"
    view[1] = 7
    assert other.do("result = float(a[1].sum())") == 350
    other.do("del a")


def test_a_view_stays_what_it_was_when_the_array_is_replaced(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = np.full(50_000, 1.0)
    view = s["it"]
    other.do(f"import numpy as np; s = sync.attach({OURS!r}); s['it'] = np.full(50_000, 2.0)")
    other.do("for n in range(50): s['more'] = np.full(50_000, 3.0)")
    assert (view == 1.0).all() and (s["it"] == 2.0).all()
    view[:] = 9
    assert (s["it"] == 2.0).all()


def test_a_view_stays_valid_after_the_store_was_closed(other: MemberProcess) -> None:
    with shmrpc.sync.store(OURS) as s:
        s["it"] = np.arange(10_000)
        s["bytes"] = bytearray(b"abc")
        view, text = s["it"], s["bytes"]
    assert view.sum() == sum(range(10_000)) and bytes(text) == b"abc"
    view[0] = 1
    del view, text
    assert other.do(f"s = sync.store({OURS!r}); result = len(s); s.close()") == 0


def test_memory_of_views_is_given_back_with_the_last_view(s: shmrpc.sync.Store) -> None:
    for number in range(200):
        s["it"] = np.full(100_000, number, "u8")
        view = s["it"]
        assert view[0] == view[-1] == number
    assert s.stats().memory < 16 << 20


def test_tensors_come_out_as_tensors_on_the_memory(s: shmrpc.sync.Store) -> None:
    torch = pytest.importorskip("torch")
    s["it"] = torch.arange(12).reshape(3, 4)
    view = s["it"]
    assert isinstance(view, torch.Tensor) and view.shape == (3, 4)
    view += 1
    assert int(s["it"].sum()) == 66 + 12


def test_arrays_of_the_array_module_and_views_are_taken_as_calls_take_them(s: shmrpc.sync.Store) -> None:
    s["it"] = array.array("d", [1.0, 2.0])
    assert list(s["it"]) == [1.0, 2.0]
    s["it"] = memoryview(b"abc")
    assert bytes(s["it"]) == b"abc"


def test_a_buffer_within_a_transaction_can_be_set_and_read(s: shmrpc.sync.Store) -> None:
    with s.transaction():
        s["it"] = np.arange(3)
        assert s.copy()["it"].sum() == 3
    assert s["it"].sum() == 3


async def test_a_store_in_a_loop_is_a_mapping_too() -> None:
    async with shmrpc.store(OURS) as s:
        s["it"] = {"a": [1]}
        s["it"]["a"].append(2)
        other = await shmrpc.attach(OURS)
        assert isinstance(other, shmrpc.Store)
        assert other["it"] == {"a": [1, 2]}
        other.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda s: shmrpc.atomic.add({}, "a", 1), TypeError, "add: expected an object of a store or a store, got dict"),
        (
            lambda s: shmrpc.atomic.update([1], 0, abs),
            TypeError,
            "update: expected an object of a store or a store, got list",
        ),
        (lambda s: shmrpc.atomic.compare_and_set(5, "a", 1, 2), TypeError, "compare_and_set: expected .* got int"),
        (lambda s: shmrpc.atomic.add(s, "absent", 1), KeyError, "'absent'"),
        (lambda s: shmrpc.atomic.add(s["it"], ("absent", 1), 1), KeyError, r"\('absent', 1\)"),
        (lambda s: shmrpc.atomic.add(s["it"], "text", 1), TypeError, "str"),
    ],
    ids=["dict", "list", "int", "key", "tuple", "text"],
)
def test_errors_name_a_value_that_is_no_container_and_a_missing_item(
    change: Callable[[Any], object], error: type[Exception], words: str
) -> None:
    with shmrpc.sync.store(OURS) as s:
        s["it"] = {"text": "a"}
        with pytest.raises(error, match=words):
            change(s)


def test_the_error_of_a_wait_for_a_transaction_of_the_same_process_says_that() -> None:
    with shmrpc.sync.store(OURS, busy_timeout=0.01) as s, s.transaction():
        said = InThread(lambda: s.__setitem__("a", 1)).join()
        assert isinstance(said, shmrpc.StoreBusy)
        assert "another task or thread of this process is in the middle of changing it" in str(said)


# --- the store itself, as an object ---


def test_stores_are_equal_if_what_they_hold_is(s: shmrpc.sync.Store) -> None:
    with shmrpc.sync.store(f"{OURS}.other") as other:
        again: Any = shmrpc.sync.attach(OURS)
        s["a"] = other["a"] = [1]
        assert s == other and not s != other and s in [other]  # noqa: SIM202
        assert s == again == {"a": [1]} == s and s["a"] == other["a"]
        s["it"] = other.copy()
        assert s["it"] == other and other == s["it"]
        other["b"] = 2
        assert s != other and other != s["it"] and s != 5
        again.close()


def test_an_attribute_of_a_store_cannot_be_set(s: shmrpc.sync.Store) -> None:
    for name in ("x", "inbox", "copy"):
        with pytest.raises(AttributeError, match=rf"store\['{name}'\]"):
            setattr(s, name, 1)
    s["d"] = {}
    with pytest.raises(AttributeError):
        s["d"].x = 1
    assert s.copy() == {"d": {}}


def test_a_dict_of_many_keys_is_made_as_of_python(s: shmrpc.sync.Store) -> None:
    s["d"] = {"b": 1}
    assert s["d"].fromkeys("ab", 1) == s.fromkeys("ab", 1) == {"a": 1, "b": 1}
    assert s["d"] == {"b": 1}


def test_a_prompt_completes_keys(s: shmrpc.sync.Store) -> None:
    s["d"] = {"b": 1, 2: 3}
    assert s._ipython_key_completions_() == ["d"] and s["d"]._ipython_key_completions_() == ["b", 2]
