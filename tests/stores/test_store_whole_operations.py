"""An operation of a store is done whole or not at all: what cannot be read stays, what fails has done nothing."""

from __future__ import annotations

import contextlib
import copy
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmrpc
import shmrpc.sync
from tests.helpers.member_process import MemberProcess
from tests.stores.shared_classes import Player

OURS = f"whole{os.getpid()}"
LARGE = "x" * 2_000_000


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS, max_memory="1MiB") as opened:
        yield opened


# --- what cannot be read stays ---

#: Operations that take a value out, and the place where another process has put a value that this one cannot read.
TAKES: dict[str, tuple[str, Callable[[shmrpc.sync.Store], Any]]] = {
    "pop of the store": ("s['it'] = {}", lambda s: s.pop("it")),
    "pop with a default": ("s['it'] = {}", lambda s: s.pop("it", None)),
    "popitem of the store": ("s['it'] = {}", lambda s: s.popitem()),
    "pop of a dict": ("s['it'] = {{1: {}}}", lambda s: s["it"].pop(1)),
    "pop of what is nested": ("s['it'] = {{1: [0, ({},)]}}", lambda s: s["it"].pop(1)),
    "popitem of a dict": ("s['it'] = {{1: {}}}", lambda s: s["it"].popitem()),
    "pop of a list": ("s['it'] = [1, {}]", lambda s: s["it"].pop()),
    "pop of a list, the first": ("s['it'] = [{}, 1]", lambda s: s["it"].pop(0)),
    "take": ("s.inbox.put({})", lambda s: s.inbox.take(timeout=0)),
    "take of what is nested": ("s.inbox.put([1, {{2: {}}}])", lambda s: s.inbox.take(timeout=0)),
}
#: Values that a process makes with another module, or with pickle=True.
VALUES = {"pattern": "re.compile('x')", "object": "hidden.Hidden(1)"}


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize(("put", "take"), TAKES.values(), ids=TAKES)
@pytest.mark.parametrize("within", [False, True])
def test_a_value_that_cannot_be_read_is_not_removed(
    s: shmrpc.sync.Store, put: str, take: Callable[[shmrpc.sync.Store], Any], value: str, within: bool
) -> None:
    with MemberProcess() as other:
        other.do(
            "import re, sys, types, dataclasses; hidden = sys.modules['hidden'] = types.ModuleType('hidden')\n"
            "exec('import shmrpc\\n@shmrpc.shared\\nclass Hidden:\\n n: int', hidden.__dict__)\n"
            f"s = sync.store({OURS!r}, max_memory='1MiB', pickle=True); {put.format(value)}"
        )
        same = "result = [len(s), repr(s.copy()), s.inbox.has_messages()]"
        before = other.do(same)
        for _ in range(2):
            with (
                s.transaction() if within else contextlib.nullcontext(),
                pytest.raises((shmrpc.DecodeError, shmrpc.LocalProtocolError), match=r"hidden:Hidden|pickle=True"),
            ):
                take(s)
            assert other.do(same) == before
        other.do("s.clear(); s.inbox.take(0) if s.inbox.has_messages() else None; s.close()")


def test_a_process_that_can_read_a_message_takes_it_after_one_that_cannot(s: shmrpc.sync.Store) -> None:
    with MemberProcess() as other:
        other.do(f"import re; s = sync.store({OURS!r}, max_memory='1MiB', pickle=True); s.inbox.put(re.compile('x'))")
        with pytest.raises(shmrpc.LocalProtocolError, match="pickle=True"):
            s.inbox.take(5)
        assert other.do("result = s.inbox.take(5).pattern") == "x"
        other.do("s.close()")


def test_the_value_that_is_returned_is_the_one_that_is_removed_despite_other_changes(s: shmrpc.sync.Store) -> None:
    """Each object goes to one, as it was when it was removed."""
    work = (
        f"from tests.stores.shared_classes import Player; s = sync.attach({OURS!r}); result = 0\n"
        "for number in range(300):\n"
        " try: result += s['players'].pop().health\n"
        " except (IndexError, KeyError): pass\n"
        " s['players'].append(Player('x', number)); result -= number\n"
        "s.close()"
    )
    s["players"] = [Player("x", number) for number in range(3)]
    with MemberProcess() as one, MemberProcess() as two:
        for each in (one, two):
            each.begin(work)
        taken = one.end() + two.end()
    assert taken + sum(each.health for each in s["players"]) == 3


def test_large_values_and_buffers_are_taken_out_as_they_were(s: shmrpc.sync.Store) -> None:
    values = [b"x" * 50_000, "y" * 50_000, bytearray(b"z" * 50_000), 2**5000, [[bytearray(b"1")], {"a": (1, [2])}]]
    for value in values:
        s["it"], s["list"] = value, [value]
        assert s.pop("it") == value and s["list"].pop() == value
        s.inbox.put(value)
        assert s.inbox.take() == value
    assert "it" not in s and s["list"] == []


# --- what fails half-way ---

START: dict[str, Any] = {"d": {"z": 0, "y": 1}, "l": [3, 1, 2, [4]], "s": {1}, "p": Player("Ada")}
FAILS: dict[str, Callable[[Any], Any]] = {
    "dict.update": lambda s: s["d"].update({"a": 1, "z": 5, "b": LARGE}),
    "dict |=": lambda s: s["d"].__ior__({"a": 1, "b": LARGE}),
    "store.update": lambda s: s.update({"a": 1, "b": LARGE}),
    "dict.update, what cannot be stored": lambda s: s["d"].update({"a": 1, "b": object()}),
    "setdefault": lambda s: s["d"].setdefault("n", [1, LARGE]),
    "extend": lambda s: s["l"].extend([1, LARGE]),
    "list +=": lambda s: s["l"].__iadd__([1, LARGE]),
    "a slice": lambda s: s["l"].__setitem__(slice(0, 2), [1, LARGE]),
    "an extended slice": lambda s: s["l"].__setitem__(slice(None, None, 2), [1, LARGE]),
    "an extended slice, what cannot be stored": lambda s: s["l"].__setitem__(slice(None, None, 2), [9, object()]),
    "*=": lambda s: s["l"].__imul__(200_000),
    "sort": lambda s: s["l"].sort(),
    "set.update": lambda s: s["s"].update([7, 8, LARGE]),
    "set |=": lambda s: s["s"].__ior__({7, 8, LARGE}),
    "set ^=": lambda s: s["s"].__ixor__({1, 8, LARGE}),
    "set.update, what is no key": lambda s: s["s"].update([5, []]),
    "update by a function": lambda s: shmrpc.atomic.update(s["d"], "z", lambda _: s["l"].append(1) or [LARGE]),
    "update by a function that raises": lambda s: shmrpc.atomic.update(s["d"], "z", lambda _: s["l"].append(1) / 0),
    "update within update": lambda s: shmrpc.atomic.update(s["d"], "z", lambda _: s["d"].update(a=1, b=LARGE)),
    "inbox.put": lambda s: s.inbox.put([1, LARGE]),
    "load": lambda s: s.load("/dev/null"),
}


@pytest.mark.parametrize("fail", FAILS.values(), ids=FAILS)
def test_an_operation_that_fails_changes_nothing_also_within_a_transaction(
    s: shmrpc.sync.Store, fail: Callable[[Any], Any]
) -> None:
    errors = (shmrpc.ShmrpcError, TypeError, ZeroDivisionError)
    s.update(copy.deepcopy(START))
    with pytest.raises(errors):
        fail(s)
    assert s == START
    with s.transaction():
        s["before"] = [1]
        for _ in range(2):
            with pytest.raises(errors):
                fail(s)
            assert s == {**START, "before": [1]}
        s["after"] = s["before"]
    assert s == {**START, "before": [1], "after": [1]} and not s.inbox.has_messages()


def test_an_error_in_a_part_that_is_not_caught_ends_all_of_the_transaction(s: shmrpc.sync.Store) -> None:
    s["n"] = 1
    with pytest.raises(ZeroDivisionError), s.transaction():
        s["n"] = 2
        shmrpc.atomic.update(s, "n", lambda n: n / 0)
    assert s == {"n": 1}


def test_a_list_that_is_changed_while_it_is_sorted_is_as_it_was(s: shmrpc.sync.Store) -> None:
    s["it"] = [3, 1, 2]
    with pytest.raises(ValueError, match="modified during sort"):
        s["it"].sort(key=lambda item: s["it"].append(item) or item)
    assert s["it"] == [3, 1, 2]


def test_an_iterator_is_not_believed_how_long_it_is(s: shmrpc.sync.Store) -> None:
    class Boasts:
        def __iter__(self) -> Iterator[int]:
            return iter([])

        def __length_hint__(self) -> int:
            return 1 << 62

    s["it"] = [1]
    s["it"].extend(Boasts())
    s["it"] += (number for number in range(2, 4))
    assert s["it"] == [1, 2, 3]


def test_sets_are_looked_for_in_sets_as_in_python(s: shmrpc.sync.Store) -> None:
    s.update(it={frozenset({1}), frozenset({2}), 3}, one={1})
    assert {1} in s["it"] and s["one"] in s["it"] and set() not in s["it"]
    s["it"].discard({2})
    s["it"].remove(s["one"])
    assert s["it"] == {3}
    with pytest.raises(KeyError):
        s["it"].remove({1})


# --- containers that are put elsewhere ---


def _swap(items: Any) -> None:
    items[0], items[1] = items[1], items[0]


def _shuffle(items: Any) -> None:
    random.Random(1).shuffle(items)


def _put_last(items: Any) -> None:
    value = items[0]
    del items[0]
    items.append(value)


def _renew(items: Any) -> None:
    kept = list(items)
    items.clear()
    items.extend(kept)


def _lift(items: Any) -> None:
    items[0], items[1] = items[1], items[0][0]


def _rotate(items: Any) -> None:
    items[:-1:2], items[1::2] = items[1::2], items[:-1:2]


def _pop_around(items: Any) -> None:
    kept = items[2]
    items.pop(2)
    items.insert(0, kept)


MOVES = [_swap, _shuffle, _put_last, _renew, _lift, _rotate, _pop_around]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda number: [[number], number],
        lambda number: {0: {"n": number}, 1: {number}},
        lambda number: [Player(str(number)), {}],
    ],
    ids=["lists", "dicts", "objects"],
)
def test_containers_in_hand_are_put_elsewhere_as_in_python(
    s: shmrpc.sync.Store, move: Callable[[Any], None], make: Callable[[int], Any], within: bool
) -> None:
    plain = [make(number) for number in range(6)]
    s["it"] = copy.deepcopy(plain)
    move(plain)
    with s.transaction() if within else contextlib.nullcontext():
        move(s["it"])
        assert s["it"] == plain
    assert s["it"] == plain
    s["it"][0][0] = "changed"
    assert s["it"][1:] == plain[1:], "each is a copy of its own"


def test_values_of_keys_and_fields_are_swapped(s: shmrpc.sync.Store) -> None:
    s.update(a=[1], b=[2], ada=Player("Ada", 1, ["key"]), bob=Player("Bob", 2))
    s["a"], s["b"] = s["b"], s["a"]
    s["ada"].items, s["bob"].items = s["bob"].items, s["ada"].items
    s["ada"], s["bob"] = s["bob"], s["ada"]
    assert (s["a"], s["b"]) == ([2], [1])
    assert (s["bob"], s["ada"]) == (Player("Ada", 1), Player("Bob", 2, ["key"]))


def test_a_removed_object_is_put_as_it_was_and_gone_for_all_other_uses(s: shmrpc.sync.Store) -> None:
    s["it"] = {"a": [1]}
    kept, inner = s["it"], s["it"]["a"]
    inner.append(2)
    s["it"] = 5
    for each in (kept, inner):
        with pytest.raises(shmrpc.ObjectDeleted):
            each.copy()
        with pytest.raises(shmrpc.ObjectDeleted):
            each.clear()
    s["again"], s["inner"] = [kept, kept], inner
    assert s["again"] == [{"a": [1, 2]}] * 2 and s["inner"] == [1, 2]


@pytest.mark.slow
def test_an_object_that_a_rolled_back_transaction_removed_is_put_as_it_is(s: shmrpc.sync.Store) -> None:
    s["it"] = [1]
    kept = s["it"]
    with pytest.raises(ZeroDivisionError), s.transaction():
        del s["it"]
        s["within"] = kept
        assert s["within"] == [1]
        raise ZeroDivisionError
    kept.append(2)
    s["again"] = kept
    assert s == {"it": [1, 2], "again": [1, 2]}
    with MemberProcess() as other:
        other.do(f"s = sync.attach({OURS!r}); del s['it']; s.close()")
    with pytest.raises(shmrpc.ObjectDeleted):
        s["again"] = kept
