"""The description of a live service: complete, true and readable."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import json
import numbers
import pathlib
import sys
import types
import uuid
import zoneinfo
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, NewType

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pytest

import shmrpc
from shmrpc.cli.stubs import stub_text
from shmrpc.introspection.client_types import ClientTypes
from shmrpc.introspection.describe import describe_service
from shmrpc.values.type_names import type_name
from tests.cli.test_cli import shmrpc as run
from tests.helpers.server_process import ServerProcess
from tests.server.plain_values import Types
from tests.typing_contract.carried import carried
from tests.typing_contract.offered import Point, add, offered, points, total
from tests.typing_contract.varied import Address, Line, Vector, varied

LOOP = "uvloop"

NOW = datetime.datetime.now(datetime.UTC)
LOCAL = datetime.datetime(2030, 1, 2, 3, 4, 5)
ID = uuid.uuid4()

#: Calls with arguments in all the forms that the description accepts.
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("plain", (1, 1.5, "text", b"raw", True)),
    ("plain", (1, 1, "text", bytearray(b"raw"), True, None)),
    ("plain", (1, 1, "text", memoryview(b"raw"), False)),
    ("texts", (NOW, NOW.date(), NOW.time(), datetime.timedelta(1), decimal.Decimal("1.5"))),
    ("texts", (LOCAL, "2030-01-02", "01:02:03", "P1D", "1.5")),
    ("texts", ("2030-01-02T03:04:05Z", "2030-01-02", "01:02:03", "P1D", 1.5)),
    ("zoned", (NOW,)),
    ("zoned", ("2030-01-02T03:04:05Z",)),
    ("arrays", ([1], (1, "one"), (1.5, 2), {"a"}, [ID])),
    ("arrays", ((1,), [1, "one"], {1.5}, ["a"], (str(ID), ID.bytes))),
    ("arrays", ({1}, (1, "one"), [], frozenset("a"), frozenset([ID]))),
    ("maps", ({"a": 1.5}, {ID: {"x": 1}})),
    ("maps", ({}, {str(ID): {"x": 1, "y": 2}})),
    ("choices", ("red",)),
    ("choices", ("blue", 2, 3, "w")),
    ("line", ({"start": {"x": 1}, "end": {"x": 1, "y": 2}},)),
    ("line", ({"start": {"x": 1}, "end": {"x": 1}, "colour": "blue", "length": 2.0},)),
    ("settled", ({"street": "Main", "number": 1},)),
    ("settled", ({"street": "Main"},)),
    ("item", ({"id": ID, "children": [{"id": str(ID), "tags": ("a",)}]},)),
    ("items", ([{"id": ID}],)),
    ("sparse", ({"theName": "a"},)),
    ("sparse", ({"theName": "a", "theSize": 2, "note": "b"},)),
    ("shape", ({"type": "Circle", "radius": 1.0},)),
    ("shape", ({"type": "Square", "side": 1},)),
    ("vector", ((1.0, 2.0), (1,))),
    ("vector", ([1.0, 2.0, "a"], [1, "a"])),
    ("nested", (([([],)],),)),
    ("options", ({"depth": 1}, {"content-type": "a", "class": 1}, {"list": (1,), "str": "a"})),
    ("options", ({"depth": 1, "when": NOW.date()}, {"content-type": "a", "class": 1}, {"list": [], "str": ""})),
    ("boxes", ({"value": 1}, {"value": {"x": 1}})),
    ("limited", (1, 2, {"name": "a"})),
    ("untold", ({"any": [1]}, 2)),
    ("list", (1,)),
    ("datetime", ()),
    ("Address", ("red",)),
    ("close", (1,)),
    ("import", ()),
    ("deep.er.add", (1,)),
    ("deep.er.str", ([1],)),
]


SPOT = {"x": 1, "y": 2}
SPAN = (NOW.date(), {ID})
BOX: dict[str, Any] = {
    "ids": {ID, str(uuid.uuid4())},
    "price": 1.5,
    "pair": [1, "one"],
    "by_id": {ID: (1,)},
    "by_pair": {(1, "one"): 1},
    "made": LOCAL,
    "zoned": NOW,
    "took": datetime.timedelta(1),
    "sizes": {"sizes": [1]},
    "outer": {"inner": {"sizes": {1}}},
    "same": {"number": 1},
    "span": SPAN,
}
IMAGE = np.zeros((2, 3), "uint8")
FLOATS = np.ones((2, 3), "float32")
MIXED: dict[str, Any] = {
    "image": IMAGE,
    "anything": {(1,)},
    "raw": bytearray(b"raw"),
    "complexes": {1j, 1, 1.5},
    "ids": {ID},
}
TABLE = pa.table({"a": [1, 2]})

#: The same for a service whose types MessagePack has not.
CARRIED_CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("numbers", (1.5, 1j, fractions.Fraction(1, 3), decimal.Decimal("1.5"), 2**70)),
    ("numbers", (1, 1, fractions.Fraction(1, 3), "1.5", -1)),
    ("numbers", (1, 1.5, fractions.Fraction(1, 3), 1.5, 1)),
    ("times", (datetime.UTC, zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo("UTC"))),
    ("zones", ()),
    ("buffers", (b"raw", b"raw", array.array("d", [1.5]))),
    ("buffers", (bytearray(b"raw"), bytearray(b"raw"), array.array("B"))),
    ("buffers", (memoryview(b"raw"), memoryview(b"raw"), array.array("d", range(9000)))),
    ("ranges", (range(3), slice(1, None), pathlib.Path("a"), pathlib.PurePosixPath("a"))),
    ("ranges", (range(3), slice(1, None), "a", "a")),
    ("paths", ()),
    ("sets", ({ID}, frozenset([frozenset([1])]))),
    ("sets", ([str(ID)], [{1}, (2,)])),
    ("sets_of_classes", ([SPOT],)),
    ("abstract", ({1.5}, {"a"}, (1,), {"a": {1}})),
    ("changeable", ()),
    ("derived", ("word",)),
    ("keys", ({ID: 1},)),
    *[("odd", (value,)) for value in (None, 0.5, (1, 2), "word")],
    ("sizes", ({"sizes": {1}}, {"inner": {"sizes": (1,)}}, {"number": 1})),
    ("span", (SPAN,)),
    ("span", ([NOW.date().isoformat()],)),
    ("box", (BOX,)),
    ("box", (BOX | {"made": NOW, "zoned": "2030-01-02T03:04:05Z", "took": "P1D", "price": "1"},)),
    ("mixed", (MIXED,)),
    ("mixed", (MIXED | {"raw": b"raw", "box": BOX, "path": "a", "ids": [str(ID)]},)),
    ("mixed", (MIXED | {"anything": None, "box": None, "path": pathlib.Path("a")},)),
    ("row", (([1],),)),
    ("row", (({1}, (1j, 1)),)),
    ("arrays", (IMAGE, FLOATS, IMAGE[0], np.float32(1))),
    ("arrays", (np.zeros((200, 200)), np.ones(20000, "float32"), np.zeros(50000, "uint8"), np.float32(1))),
    ("perhaps", (IMAGE, {"a": FLOATS, "b": "text", "c": np.ones(1)})),
    ("perhaps", (1, {})),
    ("perhaps", (None, {})),
    ("fixed", (FLOATS,)),
    ("fixed", (np.ones((2, 1)),)),
    ("invert", (IMAGE,)),
    ("invert", (IMAGE, FLOATS)),
    ("table", (TABLE,)),
    ("numpy", ()),
]

#: The same for a service that has registered its classes, which this process has not.
REGISTERED_CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("colour", ("red",)),
    ("spot", ({"id": ID},)),
    ("spot", ({"id": str(ID), "tags": ["a"]},)),
    ("spots", ([{"id": ID}],)),
    ("label", ({"theText": "a"},)),
    ("label", ({"type": "label", "theText": "a", "theSizes": {1}, "theNote": "b"},)),
    ("vector", ((1, 1j), (1, {2}))),
    ("holder", ({"spot": {"id": ID}, "colours": ["red"], "ids": {ID}},)),
    ("weights", ([1.5], {"number": 1})),
    ("coded", ({"number": 1},)),
]


@pytest.fixture
async def client() -> AsyncIterator[shmrpc.Client]:
    """Yield a client that knows the service by name only."""
    async with shmrpc.serve(varied), shmrpc.connect("varied") as client:
        yield client


@pytest.fixture(scope="module")
def description() -> shmrpc.Description:
    return describe_service(varied)


@pytest.mark.parametrize(("name", "arguments"), CALLS)
async def test_types_without_classes_are_those_that_arrive(
    client: shmrpc.Client, description: shmrpc.Description, name: str, arguments: tuple[Any, ...]
) -> None:
    await check_types(client, description, name, arguments)


async def check_types(
    client: shmrpc.Client, description: shmrpc.Description, name: str, arguments: tuple[Any, ...]
) -> None:
    """Check the arguments and the result of a call against the types of the description."""
    endpoint = next(each for each in description.endpoints if each.name == name)
    sent, received = Types(description.types, sent=True), Types(description.types, sent=False)
    accepted = [each.accepts for each in endpoint.parameters]
    for argument, text in zip(arguments, accepted, strict=False):
        assert sent.fits(argument, text), f"the description does not accept {argument!r} as {text}"
    result = await client.call(name, *arguments)
    assert received.fits(result, endpoint.gives), f"{result!r} arrived, not {endpoint.gives}"


@pytest.mark.parametrize("codec", ["msgspec", "msgpack"])
async def test_values_arrive_as_what_the_description_says(codec: Any) -> None:
    description = describe_service(carried)
    async with shmrpc.serve(carried, codec=codec), shmrpc.connect("carried", codec=codec) as client:
        for name, arguments in CARRIED_CALLS:
            await check_types(client, description, name, arguments)
        received = Types(description.types, sent=False)
        gives = {each.name: each.gives for each in description.endpoints}
        frames = [frame async for frame in client.call("frames", [IMAGE, IMAGE])]
        assert len(frames) == 2
        assert all(received.fits(frame, gives["frames"]) for frame in frames)
        assert [ids async for ids in client.call("found", [ID, str(ID)])] == [{ID}, {ID}]
        assert gives["found"] == "set[uuid.UUID]"


async def test_registered_classes_arrive_as_the_description_says_where_they_are_not_registered() -> None:
    with ServerProcess("tests.typing_contract.registered:registered"):
        async with shmrpc.connect("registered") as client:
            description = await client.describe()
            for name, arguments in REGISTERED_CALLS:
                await check_types(client, description, name, arguments)
            (label,) = [label async for label in client.call("labels", ["abc"])]
    assert label == {"the_text": "abc", "the_sizes": {3}}
    assert Types(description.types, sent=False).fits(label, "Label")
    assert "tests.typing_contract.registered" not in sys.modules


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("numbers", (1, True, fractions.Fraction(1), 1, 1)),
        ("numbers", (1, 1j, 1.5, 1, 1)),
        ("ranges", ([1], slice(1), "a", "a")),
        ("ranges", (range(1), slice(1), pathlib.PurePosixPath("a"), "a")),
        ("odd", ("other",)),
        ("odd", ([1, 2],)),
        ("arrays", ([[1]], FLOATS, IMAGE[0], np.float32(1))),
        ("arrays", (IMAGE, IMAGE, IMAGE[0], np.float32(1))),
        ("arrays", (IMAGE, FLOATS, IMAGE, np.float32(1))),
        ("arrays", (IMAGE, FLOATS, IMAGE[0], 1.5)),
        ("perhaps", ("text", {})),
        ("fixed", (IMAGE,)),
        ("table", ([1],)),
    ],
)
async def test_arguments_that_the_description_excludes_are_refused(name: str, arguments: tuple[Any, ...]) -> None:
    description = describe_service(carried)
    parameters = next(each for each in description.endpoints if each.name == name).parameters
    sent = Types(description.types, sent=True)
    assert not all(sent.fits(value, each.accepts) for value, each in zip(arguments, parameters, strict=True))
    async with shmrpc.serve(carried), shmrpc.connect("carried") as client:
        with pytest.raises(shmrpc.InvalidArguments):
            await client.call(name, *arguments)


def test_every_endpoint_is_called_above() -> None:
    for service, calls in ((varied, CALLS), (carried, CARRIED_CALLS)):
        unary = {each.name for each in describe_service(service).endpoints if each.kind == "unary"}
        assert {name for name, _ in calls} == unary - {"keywords"}


@pytest.mark.parametrize(
    ("kind", "gives", "accepts"),
    [
        (np.ndarray, "numpy.ndarray[Any, Any]", "numpy.ndarray[Any, Any]"),
        (np.ndarray[Any, np.dtype[np.int8]], "numpy.typing.NDArray[numpy.int8]", "numpy.typing.NDArray[numpy.int8]"),
        (np.ndarray[Any, Any], "numpy.typing.NDArray[Any]", "numpy.typing.NDArray[Any]"),
        (
            np.ndarray[Any, np.dtype[np.int8] | np.dtype[np.bool]],
            "numpy.ndarray[Any, numpy.dtype[numpy.int8] | numpy.dtype[numpy.bool]]",
            None,
        ),
        (np.memmap, "numpy.memmap[Any, Any]", "numpy.memmap[Any, Any]"),
        (np.integer, "numpy.integer[Any]", "numpy.integer[Any]"),
        (set[int] | None, "set[int] | None", "list[int] | tuple[int, ...] | set[int] | frozenset[int] | None"),
        (Annotated[set[int], msgspec.Meta(description="ids", max_length=3)], "set[int]", None),
        (Annotated[np.ndarray | int, "anything"], "numpy.ndarray[Any, Any] | int", "numpy.ndarray[Any, Any] | int"),
        (shmrpc.Writable[memoryview], "memoryview", "bytes | bytearray | memoryview"),
        (NewType("Ids", set[int]), "set[int]", None),
        (set, "set[Any]", "list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]"),
        (tuple[()], "tuple[()]", "tuple[()] | list[Any]"),
        (collections.Counter, "collections.Counter[Any]", "collections.Counter[Any]"),
        (numbers.Number, "Any", "Any"),
        (object, "Any", "Any"),
    ],
)
def test_types_are_written_as_a_checker_reads_them(kind: Any, gives: str, accepts: str | None) -> None:
    types = ClientTypes([kind], [kind])
    assert types.gives(kind) == gives
    assert accepts is None or types.accepts(kind) == accepts


def test_tensors_are_named_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensor = type("Tensor", (), {"__module__": "torch"})
    parameter = type("Parameter", (tensor,), {"__module__": "torch.nn.parameter"})
    foreign = type("Array", (), {"__module__": "others", "__dlpack__": None})
    vars(torch).update(Tensor=tensor)
    plain = ClientTypes([tensor, parameter, foreign], [tensor])
    assert [plain.gives(kind) for kind in (list[tensor], parameter, foreign)] == [  # type: ignore[valid-type]
        *("list[torch.Tensor]", "Any", "Any")
    ]
    assert plain.accepts(tensor) == "torch.Tensor"
    assert type_name(parameter) == "Parameter"


def test_a_stub_imports_only_what_its_types_name() -> None:
    service = shmrpc.Service("plain")

    @service.endpoint
    def numpy(value: Literal["torch.Tensor", "pathlib.Path"]) -> set[uuid.UUID]:
        """Not an numpy.ndarray."""
        return {ID}

    imports = [line for line in stub_text(describe_service(service)).splitlines() if line.startswith("import ")]
    assert imports == ["import shmrpc", "import uuid"]


def test_people_read_how_a_parameter_is_declared() -> None:
    text = describe_service(carried).text
    assert "image: Writable[numpy.typing.NDArray[numpy.uint8]]," in text
    assert "mask: Writable[numpy.ndarray] | None = None," in text
    assert "\ntable(table: pyarrow.Table) -> tuple[pyarrow.Table, pyarrow.RecordBatch, pyarrow.Buffer]\n" in text
    assert text.count("Sizes (typed dict)") == 1
    assert "\nOdd (enum): Literal[None, 'word'] | float | tuple[Any, ...]\n" in text


def test_the_command_line_names_what_is_registered() -> None:
    with ServerProcess("tests.typing_contract.registered:registered"):
        text = run("describe", "registered").stdout
    module = "tests.typing_contract.registered"
    assert f"\nColour (enum, registered as '{module}.Colour'): Literal['red', 'blue']\n" in text
    assert f"\nLabel (struct, registered as '{module}.Label')\n    the_text: str\n" in text
    assert f"\nLabel (struct, registered as '{module}.Label') as it may be sent\n    type: Literal['label'] " in text
    assert "\nHolder (dataclass)\n" in text


async def test_the_live_service_describes_itself(client: shmrpc.Client) -> None:
    description = await client.describe()
    assert description == describe_service(varied)
    assert [each.name for each in description.endpoints] == list(varied.endpoints)
    by_name = {each.name: each for each in description.endpoints}
    assert by_name["total"].kind == "client stream"
    assert by_name["moved"].kind == "bidirectional"
    assert by_name["ticks"].kind == "server stream"
    assert (by_name["countdown"].kind, by_name["countdown"].run_in) == ("server stream", "thread")
    assert by_name["plain"].docstring.startswith("Add nothing.\n\nIt has")
    by, only = by_name["keywords"].parameters[1], by_name["keywords"].parameters[2]
    assert (by.kind, only.kind, only.required) == ("positional or keyword", "keyword only", True)
    level = by_name["choices"].parameters[1]
    assert (level.type, level.required, level.default) == ("Level", False, "Level.LOW")


@pytest.mark.parametrize("server_codec", ["msgspec", "msgpack"])
@pytest.mark.parametrize("client_codec", ["msgspec", "msgpack"])
async def test_descriptions_travel_by_either_codec(server_codec: Any, client_codec: Any) -> None:
    async with shmrpc.serve(varied, codec=server_codec), shmrpc.connect("varied", codec=client_codec) as client:
        assert await client.describe() == describe_service(varied)


async def test_a_large_service_is_described() -> None:
    service = shmrpc.Service("large")
    for number in range(1500):
        service.endpoint(name=f"line_{number}")(varied.endpoints["line"].function)
    async with shmrpc.serve(service), shmrpc.connect("large") as client:
        description = await client.describe()
    assert len(description.endpoints) == 1500
    assert [each.name for each in description.types] == ["Line", "Point", "Colour"]


async def test_a_service_without_endpoints_is_described() -> None:
    async with shmrpc.serve(shmrpc.Service("empty")), shmrpc.connect("empty") as client:
        assert await client.describe() == shmrpc.Description("empty", [], [])


async def test_describing_without_a_connection_says_how_to_connect() -> None:
    with pytest.raises(shmrpc.LocalProtocolError, match="async with"):
        await shmrpc.connect("varied").describe()
    with pytest.raises(shmrpc.LocalProtocolError, match="with shmrpc.sync.connect"):
        shmrpc.sync.connect("varied").describe()


def test_classes_with_the_same_name_are_distinguished() -> None:
    def another() -> Any:
        class Point(msgspec.Struct):
            label: str

        return Point

    service = shmrpc.Service("twice")

    def first(point):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return point

    def second(point):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return point

    first.__annotations__ = {"point": Point, "return": Point}
    second.__annotations__ = dict.fromkeys(("point", "return"), another())
    service.endpoint(first)
    service.endpoint(second)
    description = describe_service(service)
    assert [each.gives for each in description.endpoints] == ["Point", "Point2"]
    assert [[field.name for field in each.fields] for each in description.types] == [["x", "y"], ["label"]]


def test_a_name_that_has_changed_its_meaning_does_not_hide_the_service() -> None:
    source = """
from __future__ import annotations
import msgspec, shmrpc
service = shmrpc.Service("changing")
class Names(msgspec.Struct):
    names: list[str]
@service.endpoint
def put(names: Names) -> int:
    return 1
@service.endpoint
def list() -> int:
    return 1
"""
    sys.modules["changing"] = made = types.ModuleType("changing")
    try:
        exec(compile(source, "changing.py", "exec"), made.__dict__, None)
        description = describe_service(made.service)
    finally:
        del sys.modules["changing"]
    assert [each.name for each in description.endpoints] == ["put", "list"]
    assert description.endpoints[0].parameters[0].type == "Names"


def test_defaults_that_cannot_be_printed_do_not_hide_the_service() -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    service = shmrpc.Service("odd")

    @service.endpoint
    def odd(value: Any = Unprintable(), long: str = "x" * 1000) -> None:  # noqa: B008
        return None

    value, long = describe_service(service).endpoints[0].parameters
    assert "whose __repr__ raised RuntimeError" in (value.default or "")
    assert len(long.default or "") == 80


def test_the_command_line_describes_a_live_service() -> None:
    with ServerProcess("tests.typing_contract.varied:varied"):
        text = run("describe", "varied")
        assert text.stderr == ""
        assert "\nsettled(address: Address) -> Address\n" in text.stdout
        assert "\ncountdown(start: int) -> stream of int    [runs in a thread]\n" in text.stdout
        assert "\nlist(count: int) -> dict[str, int]\n    Carry the name of" in text.stdout
        assert "\nkeywords(self: int, /, both: int, *, only: int, optional: int = 1) -> list[int]\n" in text.stdout
        assert "\nLine (dataclass)\n    start: Point\n    end: Point\n    colour: Colour = Colour.RED\n" in text.stdout
        assert "\nBox[int] (struct)\n    value: int\n" in text.stdout
        assert "\n    note: str (may be left out)\n" in text.stdout
        found = json.loads(run("describe", "varied", "--json").stdout)
        assert msgspec.convert(found, shmrpc.Description) == describe_service(varied)
        assert run("stub", "varied").stdout == stub_text(describe_service(varied))


def test_the_command_line_writes_a_stub_only_if_there_is_one(tmp_path: Any) -> None:
    target = tmp_path / "absent_client.pyi"
    done = run("stub", "absent", "-o", str(target), "--timeout", "0")
    assert done.returncode == 3
    assert "shmrpc serve MODULE:absent" in done.stderr
    assert not target.exists()
    with ServerProcess("tests.typing_contract.varied:varied"):
        assert run("stub", "varied", "-o", str(target)).stdout == ""
    assert target.read_text() == stub_text(describe_service(varied))


async def test_a_client_of_the_service_object_has_results_of_the_declared_types() -> None:
    async with shmrpc.serve(varied), shmrpc.connect(varied) as client:
        line = await client.line({"start": {"x": 1}, "end": {"x": 2}})
        assert type(line) is Line
        assert type(await client.with_options(timeout=60).settled(Address("Main", 1))) is Address
        assert await client.with_options(metadata={"a": "b"}).settled(Address("Main", 1)) == Address("Main", 1)
        assert type((await client.vector((1, 2), (1,)))[0]) is Vector
        assert [type(point).__name__ async for point in client.ticks(2)] == ["Point", "Point"]
        assert type(await client.call("line", line)) is Line
        assert [type(each) async for each in client.map("settled", [Address("Main", 1)])] == [Address]
        assert await client.deep.er.add(1) == 3
        assert (await client.texts(NOW, NOW.date(), NOW.time(), datetime.timedelta(1), "1.5"))[4] == decimal.Decimal(
            "1.5"
        )


def test_a_client_without_a_loop_has_results_of_the_declared_types() -> None:
    with ServerProcess("tests.typing_contract.varied:varied"), shmrpc.sync.connect(varied) as client:
        line = client.line({"start": {"x": 1}, "end": {"x": 2}})
        assert type(line) is Line
        assert type(client.with_options(timeout=60).line(line)) is Line
        assert [type(point).__name__ for point in client.ticks(2)] == ["Point", "Point"]
        assert [type(each) for each in client.map("settled", [Address("Main", 1)])] == [Address]
        assert client.describe() == describe_service(varied)


async def test_calls_that_type_checkers_accept_work() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async with shmrpc.serve(offered), shmrpc.connect("offered") as client:
        assert await client.call(add, a=1) == 1
        assert await client.call(total, numbers(), factor=2) == 6
        assert await client.call(total, [1, 2, 3], 2) == 12
        assert [point async for point in client.call(points, 2)] == [Point(0, 0), Point(1, 1)]
        assert [sum async for sum in client.map(add, range(3), [1, 1, 1], chunk=2)] == [1, 2, 3]
        await client.notify(add, 1, 2)
        view = client.with_options(timeout=60)
        assert type(view) is shmrpc.Client
