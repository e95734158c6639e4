"""Classes whose instances lie in a store: their methods work on the shared memory, as they would on an instance."""

from __future__ import annotations

import array
import copy
import dataclasses
import enum
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shmrpc
import shmrpc.sync
from tests.helpers.member_process import MemberProcess
from tests.stores.shared_classes import (
    Box,
    Called,
    Checked,
    Clashing,
    Derived,
    DerivedFromFrozen,
    DerivedFromSlots,
    Mage,
    Metrics,
    Node,
    Open,
    Ordered,
    Player,
    Point,
    Shape,
    Slotted,
    SlottedData,
    Square,
    Unmarked,
    WithoutAnnotations,
)
from tests.stores.stored_types import Caching, Colour, Coloured, Level, OpenCaching, State

#: A name that no other run of these tests has.
OURS = f"classes{os.getpid()}"


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS) as opened:
        yield opened


INSTANCES: dict[str, Any] = {
    "made a dataclass": Player("Ada", 5, ["key"]),
    "derived": Mage("Bob"),
    "frozen": Point(1.0, 2.0),
    "slots": SlottedData(1, {"a": 2}),
    "with a field of its own": Checked(1, 5),
    "generic": Box([1]),
    "abstract base": Square(2.0),
    "tree": Node(1, [Node(2), Node(3, [], {"four": Node(4)})]),
    "in order": Ordered(1, "a"),
}


@pytest.mark.parametrize("instance", INSTANCES.values(), ids=INSTANCES)
def test_an_instance_is_copied_in_and_out(s: shmrpc.sync.Store, instance: Any) -> None:
    s["it"] = instance
    s["nested"] = [{"in": (instance,)}]
    proxy = s["it"]
    assert isinstance(proxy, type(instance))
    assert proxy == instance and instance == proxy.copy()
    assert type(proxy.copy()) is type(instance)
    assert repr(proxy) == repr(instance)
    assert s.copy() == {"it": instance, "nested": [{"in": (instance,)}]}


@pytest.mark.slow
@pytest.mark.parametrize("instance", INSTANCES.values(), ids=INSTANCES)
def test_another_process_finds_the_class_by_its_name(s: shmrpc.sync.Store, other: MemberProcess, instance: Any) -> None:
    s["it"] = instance
    other.do(f"s = sync.attach({OURS!r}); it = s['it']; result = None")
    assert other.do("result = repr(it.copy())") == repr(instance)
    other.do("s['back'] = it.copy()")
    assert s["back"] == instance


SCRIPT = """
import multiprocessing
import sys
import shmrpc

@shmrpc.shared
class Player:
    name: str

def play(name):
    with shmrpc.sync.store(name) as s:
        s["ada"].name = "Ada"
        s["bob"] = Player("Bob")

if __name__ == "__main__":
    with shmrpc.sync.store(sys.argv[1]) as s:
        s["ada"] = Player("?")
        process = multiprocessing.get_context("spawn").Process(target=play, args=(sys.argv[1],))
        process.start()
        process.join()
        print(process.exitcode, s["ada"].copy(), s["bob"].copy(), type(s["bob"].copy()) is Player)
"""


@pytest.mark.slow
def test_the_classes_of_a_program_are_those_of_the_processes_that_it_spawns(tmp_path: Path) -> None:
    """In these the module of the program has two names."""
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(path), f"{OURS}.spawned"], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout == "0 Player(name='Ada') Player(name='Bob') True\n", done.stderr


def test_fields_are_read_and_set_by_all(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = Player("Ada")
    it = s["it"]
    other.do(f"s = sync.attach({OURS!r}); it = s['it']; it.health -= 5; it.items.append('key'); it.name = 'x' * 50")
    assert (it.name, it.health, it.items) == ("x" * 50, 95, ["key"])
    it.items = ["a", "b"]
    assert other.do("result = it.items.copy()") == ["a", "b"]


def test_methods_and_properties_work_on_the_memory(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = Player("Ada")
    it = s["it"]
    assert it.hit(30) == 70
    it.give("a", "b")
    it.half = 20
    other.do(f"s = sync.attach({OURS!r}); it = s['it']")
    assert other.do("result = [it.health, it.half, len(it), it.is_alive]") == [40, 20.0, 2, True]
    assert (it.twice(4), it.of("Eve"), it.worst) == (8, Player("Eve", 7), 0)
    assert other.do("result = it.hit(50)") == -10
    assert not it.is_alive and it


def test_super_calls_the_method_of_the_base(s: shmrpc.sync.Store) -> None:
    s["it"] = Mage("Bob")
    it = s["it"]
    assert isinstance(it, Player) and isinstance(it, Mage)
    assert it.hit(10) == 95
    assert (it.mana, it.health) == (9, 95)


def test_an_abstract_base_knows_what_is_derived(s: shmrpc.sync.Store) -> None:
    s["it"] = [Square(2.0), Square(3.0)]
    small, large = s["it"]
    assert isinstance(small, Shape) and small.area() == 4.0 and large.is_larger(small)


def test_a_frozen_instance_cannot_be_changed(s: shmrpc.sync.Store) -> None:
    s["it"] = Point(1.0, 2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        s["it"].x = 5.0
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        del s["it"].x
    assert s["it"] == Point(1.0, 2.0)
    assert s["it"] + Point(1.0, 1.0) == Point(2.0, 3.0)


def test_classes_with_slots_that_are_no_dataclasses(s: shmrpc.sync.Store) -> None:
    s["it"] = Slotted(1, [2])
    it = s["it"]
    it.swap()
    assert it.right == 1 and it.left == [2] and isinstance(it, Slotted)
    it.left.append(3)
    copied = s["it"].copy()
    assert type(copied) is Slotted and (copied.left, copied.right) == ([2, 3], 1)


def test_an_attribute_that_is_no_field_cannot_be_set_or_deleted(s: shmrpc.sync.Store) -> None:
    s["it"] = Player("Ada")
    for change in (
        lambda it: setattr(it, "new", 1),
        lambda it: delattr(it, "name"),
        lambda it: delattr(it, "new"),
        lambda it: it.new,
        lambda it: shmrpc.atomic.add(it, "new", 1),
        lambda it: shmrpc.atomic.add(it, "hit", 1),
    ):
        with pytest.raises((AttributeError, TypeError)):
            change(s["it"])
    assert s["it"] == Player("Ada")


def test_open_classes_take_new_attributes(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    instance = Open()
    instance.extra = {"a": [1]}  # type: ignore[attr-defined]
    s["it"] = instance
    it = s["it"]
    other.do(f"s = sync.attach({OURS!r}); it = s['it']; it.extra['a'].append(2); it.new = 'x' * 50; it.note('text')")
    assert it.extra == {"a": [1, 2]} and it.new == "x" * 50 and it.noted == "text"
    it.double = 10
    assert it.known == 5 and it.double == 10
    del it.new
    with pytest.raises(AttributeError, match="new"):
        it.new  # noqa: B018
    with pytest.raises(AttributeError, match="new"):
        del it.new
    copied = it.copy()
    assert vars(copied) == {"known": 5, "extra": {"a": [1, 2]}, "noted": "text"}
    assert not hasattr(it, "__length_hint__")


def test_an_instance_is_checked_once_and_not_in_copies(s: shmrpc.sync.Store) -> None:
    s["it"] = Checked(1, 5)
    it = s["it"]
    it.low = 9
    assert it.width == 4 and it.copy().width == 4
    with pytest.raises(ValueError, match="low is above high"):
        Checked(5, 1)


@pytest.mark.parametrize(
    "instance", [*INSTANCES.values(), [1, [2]], {"a": {1: 2}}, {1, 2}], ids=[*INSTANCES, "list", "dict", "set"]
)
def test_a_copy_by_the_standard_library_is_no_second_name_for_the_shared_object(
    s: shmrpc.sync.Store, instance: Any
) -> None:
    s["it"] = instance
    for copied in (copy.copy(s["it"]), copy.deepcopy(s["it"]), copy.deepcopy([s["it"]])[0]):
        assert type(copied) is type(instance) and copied == instance


def test_fields_that_have_the_names_of_methods_of_proxies_are_fields(s: shmrpc.sync.Store) -> None:
    s["it"] = Clashing("text", 1, [2])
    it = s["it"]
    assert (it.copy, it.changed, it.wait_changed) == ("text", 1, [2])
    it.copy = "other"
    assert it.copy == "other"
    assert s.copy()["it"] == Clashing("other", 1, [2])
    assert it == Clashing("other", 1, [2])
    assert repr(it) == repr(Clashing("other", 1, [2]))
    s["again"] = it
    assert s["again"] == Clashing("other", 1, [2])
    assert s["again"] == it


def test_trees_of_instances_are_changed_at_any_depth(s: shmrpc.sync.Store) -> None:
    s["it"] = Node(1, [Node(2)])
    it = s["it"]
    it.children.append(Node(3))
    it.children[1].by_name["four"] = Node(4)
    it.children[1].by_name["four"].value += 1
    assert it.total() == 6
    assert it == Node(1, [Node(2), Node(3, [], {"four": Node(5)})])


def test_instances_keep_their_order(s: shmrpc.sync.Store) -> None:
    s["it"] = [Ordered(2, "a"), Ordered(1, "b")]
    s["it"].sort()
    assert [each.name for each in s["it"]] == ["b", "a"]
    assert s["it"][0] < s["it"][1] and max(s["it"]).name == "a"


def test_proxies_have_the_operators_of_their_classes(s: shmrpc.sync.Store) -> None:
    s["it"] = Called([])
    it = s["it"]
    assert it("one") == 1
    with it as entered:
        entered("two")
    assert list(it) == ["one", "entered", "two", "left"]
    assert it[0] == "one" and "two" in it and "no" not in it


def test_a_generic_class_and_its_aliases(s: shmrpc.sync.Store) -> None:
    s["it"] = Box[int](5)
    assert s["it"].replace(6) == 5 and s["it"].content == 6 and isinstance(s["it"], Box)


def test_a_class_is_shared_where_it_is_marked_only(s: shmrpc.sync.Store) -> None:
    with pytest.raises((shmrpc.EncodeError, TypeError), match="Unmarked"):
        s["it"] = Unmarked(1)


def test_a_class_that_cannot_be_imported_elsewhere_is_named(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    @shmrpc.shared
    class Local:
        value: int

    s["it"] = Local(1)
    assert s["it"].value == 1
    other.do(f"s = sync.attach({OURS!r})")
    with pytest.raises(RuntimeError, match="DecodeError: the class .*Local of an object in the store cannot be"):
        other.do("s['it']")
    assert other.do("s['other'] = 1; result = len(s)") == 2


def test_a_class_that_has_other_fields_elsewhere_is_named(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = Point(1.0, 2.0)
    other.do("from dataclasses import make_dataclass; import tests.stores.shared_classes as there")
    other.do("Point = make_dataclass('Point', ['x', 'y', 'z']); Point.__module__ = there.__name__")
    other.do(f"there.Point = shmrpc.shared(Point); s = sync.attach({OURS!r})")
    said = "the class .*:Point has the fields x, y in the store, and x, y, z here"
    with pytest.raises(RuntimeError, match=f"Error: {said}"):
        other.do("s['it']")
    with pytest.raises(RuntimeError, match=f"Error: {said}"):
        other.do("s['more'] = Point(1, 2, 3)")


def test_a_class_that_is_not_marked_elsewhere_is_named(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = Square(1.0)
    other.do("import tests.stores.shared_classes as there; from shmrpc.stores import records")
    other.do("records._by_name.clear(); records._classes.clear()")
    with pytest.raises(RuntimeError, match=r"DecodeError: the class .*:Square .* is not marked as @shmrpc.shared here"):
        other.do(f"s = sync.attach({OURS!r}); s['it']")


class NotAClass:
    """A class with nothing in it."""


def test_a_class_without_fields_is_refused() -> None:
    with pytest.raises(TypeError, match="NotAClass has no fields"):
        shmrpc.shared(NotAClass)
    with pytest.raises(TypeError, match="expected a class"):
        shmrpc.shared(5)  # type: ignore[call-overload]


def test_an_instance_without_a_field_is_refused(s: shmrpc.sync.Store) -> None:
    with pytest.raises(TypeError, match="left"):
        s["it"] = Slotted.__new__(Slotted)


def test_a_proxy_of_an_instance_is_pickled_as_where_it_lies(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = Player("Ada")
    sent = pickle.dumps(s["it"])
    other.do(f"import pickle; s = sync.attach({OURS!r}); pickle.loads({sent!r}).hit(5)")
    assert s["it"].health == 95


def test_a_class_of_a_transaction_that_comes_to_nothing_is_known_afterwards(s: shmrpc.sync.Store) -> None:
    @shmrpc.shared
    class First:
        one: int

    @shmrpc.shared
    class Second:
        two: int
        three: int

    with pytest.raises(ZeroDivisionError), s.transaction():
        s["it"] = First(1)
        raise ZeroDivisionError
    s["two"] = Second(2, 3)
    s["one"] = First(1)
    assert (s["two"].three, s["one"].one) == (3, 1)
    assert s.copy() == {"two": Second(2, 3), "one": First(1)}


def test_annotations_of_a_class_derived_from_a_dataclass_are_fields(s: shmrpc.sync.Store) -> None:
    s["it"] = Derived(2, mana=5)
    assert s["it"].copy() == Derived(2, 3, 5)
    s["it"].mana += 1
    assert (s["it"].x, s["it"].y, s["it"].mana) == (2, 3, 6)
    s["slots"] = DerivedFromSlots(1, z=7)
    assert s["slots"].copy() == DerivedFromSlots(1, {}, 7)
    s["frozen"] = DerivedFromFrozen(1.0, 2.0, 3.0)
    assert s["frozen"].copy() == DerivedFromFrozen(1.0, 2.0, 3.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        s["frozen"].z = 4.0
    s["unchanged"] = WithoutAnnotations(4)
    assert s["unchanged"].copy() == WithoutAnnotations(4)


# --- structs ---


def test_a_struct_is_known_by_the_members_of_its_enumeration(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    struct = s.struct(Metrics, {Metrics.errors: 5})
    assert [struct[each] for each in Metrics] == [0, 5, 0]
    struct[Metrics.requests] += 1
    assert shmrpc.atomic.add(struct, Metrics.seconds, 0.5) == 0.5
    other.do("from tests.stores.shared_classes import Metrics")
    other.do(f"s = sync.attach({OURS!r}); m = s.struct(Metrics, {{Metrics.errors: 99}}); m[Metrics.errors] += 1")
    assert struct[Metrics.errors] == struct[1] == 6
    assert struct.copy() == {Metrics.requests: 1, Metrics.errors: 6, Metrics.seconds: 0.5}
    assert repr(struct) == "Metrics({'requests': 1, 'errors': 6, 'seconds': 0.5})"
    assert len(struct) == 3
    for wrong in (3, -1, 2**70):
        with pytest.raises((IndexError, OverflowError)):
            struct[wrong]
        with pytest.raises((IndexError, OverflowError)):
            struct[wrong] = 1


def test_values_of_a_struct_that_are_of_no_member_are_refused(s: shmrpc.sync.Store) -> None:
    for key in ("errors", 3, -1, None):
        with pytest.raises(ValueError, match=f"by member of Metrics, got the key {key!r}"):
            s.struct(Metrics, {Metrics.errors: 5, key: 1})
    assert "Metrics" not in s
    assert s.struct(Metrics, {1: 5})[Metrics.errors] == 5


def test_a_value_that_is_no_struct_is_refused(s: shmrpc.sync.Store) -> None:
    class Gap(enum.IntEnum):
        one = 1

    for wrong in (Gap, Player, 5):
        with pytest.raises(TypeError, match="struct: "):
            s.struct(wrong)  # type: ignore[arg-type]
    s["Metrics"] = 5
    with pytest.raises(TypeError):
        s.struct(Metrics)


# --- what a class can be, and what an instance can have ---


class _Struct(msgspec.Struct):
    value: int = 1


@pytest.mark.parametrize("base", [dict, list, set, tuple, int, str, Exception, KeyError, array.array, _Struct])
def test_a_class_whose_instances_have_more_than_fields_is_not_shared(base: type) -> None:
    for options in ({}, {"open": True}):
        with pytest.raises(TypeError, match=r"Derived is derived from .* would lose: make it a dataclass"):
            shmrpc.shared(**options)(type("Derived", (base,), {"__annotations__": {"field": int}, "field": 1}))


def test_an_enum_needs_no_mark() -> None:
    with pytest.raises(TypeError, match="a store holds without a mark"):
        shmrpc.shared(Colour)


def test_fields_hold_members_of_enums(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = Coloured()
    it = s["it"]
    assert it.colour is Colour.RED and it.level is Level.LOW and it.copy() == Coloured()
    it.colour = Colour.BLUE
    it.by_state[State.RUNNING] = Level.HIGH
    other.do(f"s = sync.attach({OURS!r}); from tests.stores.stored_types import Colour, State")
    assert other.do("result = s['it'].colour is Colour.BLUE and [*s['it'].by_state] == [State.RUNNING]")
    assert s.copy() == {"it": Coloured(Colour.BLUE, Level.LOW, {State.RUNNING: Level.HIGH})}


def test_an_attribute_that_is_no_field_is_not_lost(s: shmrpc.sync.Store) -> None:
    player = Player("Ada")
    player.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(shmrpc.EncodeError, match=r"attribute 'extra', which is no field: .*open=True"):
        s["it"] = [player]
    assert s.copy() == {}


def test_a_frozen_instance_has_the_hash_of_its_copy(s: shmrpc.sync.Store) -> None:
    s["it"] = [Point(1.0, 2.0), Player("Ada")]
    assert hash(s["it"][0]) == hash(Point(1.0, 2.0))
    assert {s["it"][0]: "there"}[Point(1.0, 2.0)] == "there"
    with pytest.raises(TypeError, match="unhashable"):
        hash(s["it"][1])


def test_a_cached_property_is_made_of_what_is_there_now(s: shmrpc.sync.Store) -> None:
    instances: list[Any] = [Caching(2), OpenCaching(2)]
    for number, instance in enumerate(instances):
        assert instance.double == 4
        s[number] = instance
        assert s[number].double == 4
        s[number].value = 5
        assert s[number].double == 10
        assert vars(s[number].copy()) == {"value": 5}
