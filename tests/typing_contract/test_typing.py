"""Type checkers on programs of clients: mypy and pyright must accept code that works, and refuse code that fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shmrpc.cli.stubs import stub_text
from shmrpc.introspection.describe import describe_service
from tests.cli.test_cli import shmrpc as run
from tests.helpers.server_process import ServerProcess
from tests.typing_contract.carried import carried
from tests.typing_contract.varied import varied

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "tests" / "typing_contract"

#: Uses of the stub's clients: a line that must be refused ends with `# refused`.
PROGRAM = """
    from __future__ import annotations

    import datetime
    import uuid
    from collections.abc import AsyncGenerator, AsyncIterator, Generator
    from typing import TYPE_CHECKING, Any, Literal, assert_type, cast

    import shmrpc

    if TYPE_CHECKING:
        from varied_client import Item, ItemInput, Line, Address, Point, VariedClient, VariedSyncClient


    async def in_a_loop(numbers: AsyncIterator[int]) -> None:
        async with cast("VariedClient", shmrpc.connect("varied")) as client:
            assert_type(await client.plain(1, 1, "text", bytearray(b"raw"), True), bytes)
            assert_type(await client.list(1), dict[str, int])
            assert_type(await client.zoned(datetime.datetime.now(datetime.UTC)), datetime.datetime)
            assert_type(await client.datetime(), datetime.datetime)
            line = await client.line({"start": {"x": 1}, "end": {"x": 1, "y": 2}, "colour": "blue"})
            assert_type(line, "Line")
            assert_type(line["end"]["x"], int)
            assert_type(line.get("colour"), Literal["red", "blue"] | None)
            await client.line(line)
            item = await client.item({"id": uuid.uuid4(), "children": [{"id": "1", "tags": ("a",)}]})
            assert_type(item["id"], str)
            assert_type(item["children"], "list[Item]")
            await client.item(item)
            await client.items([item])
            await client.items([{"id": uuid.uuid4()}, {"id": "1"}])
            assert_type(await client.Address("red"), "Address")
            address: Address = {"street": "Main", "number": 1}
            assert_type(await client.settled(address), "Address")
            ids: list[uuid.UUID] = []
            whole: list[int] = []
            await client.arrays((1,), [1, "one"], whole, {"a"}, ids)
            by_id: dict[uuid.UUID, Point] = {uuid.uuid4(): {"x": 1}}
            by_text: dict[str, Point] = {"1": {"x": 1}}
            await client.maps({"a": 1}, by_id)
            await client.maps({}, by_text)
            await client.choices("red", 2, 3, None)
            await client.shape({"type": "Circle", "radius": 1})
            assert_type(await client.vector((1, 2), (1,)), tuple[list[float | str], tuple[int, str]])
            await client.options({"depth": 1}, {"content-type": "a", "class": 1}, {"list": [1], "str": ""})
            await client.keywords(1, 2, only=3)
            assert_type(client.ticks(1), "AsyncGenerator[Point, None]")
            assert_type(client.countdown(3), AsyncGenerator[int, None])
            assert_type(await client.total(numbers), int)
            assert_type(await client.total([1, 2], start=1), int)
            assert_type([point async for point in client.moved([{"x": 1}], 2)], "list[Point]")
            assert_type(await client.deep.er.add(1), int)
            assert_type(await client.deep.er.str(1), str)
            assert_type(await client.with_options(timeout=1).list(1), dict[str, int])
            assert_type(await client.call("import"), Any)
            assert_type(await client.describe(), shmrpc.Description)

            await client.plain("1", 1, "text", b"", True)  # refused
            await client.plain(1, 1, "text", "raw", True)  # refused
            await client.plain(1, 1, "text")  # refused
            await client.line({"start": {"x": 1}})  # refused
            await client.line({"start": {"x": 1}, "end": {"y": 1}})  # refused
            await client.line({"start": {"x": 1}, "end": {"x": "1"}})  # refused
            await client.line({"start": {"x": 1}, "end": {"x": 1}, "color": "red"})  # refused
            await client.line({"start": {"x": 1}, "end": {"x": 1}, "colour": "green"})  # refused
            line["middle"]  # refused
            await client.item({"id": 1})  # refused
            await client.items({"id": "1"})  # refused
            await client.arrays([1], (1, 2), [], {"a"}, [])  # refused
            await client.arrays([1], (1, "one"), [], "abc", [])  # refused
            await client.maps({"a": 1}, {1: {"x": 1}})  # refused
            await client.choices("green")  # refused
            await client.choices("red", 3)  # refused
            await client.shape({"radius": 1})  # refused
            await client.vector((1,), (1,))  # refused
            await client.keywords(1, both=2)  # refused
            await client.keywords(self=1, both=2, only=3)  # refused
            await client.total(["a"])  # refused
            await client.ticks(1)  # refused
            await client.deep.er.add("1")  # refused
            await client.deep.er.ad(1)  # refused
            await client.deep.add(1)  # refused
            await client.absent(1)  # refused
            (await client.list(1)).append(1)  # refused


    def in_threads() -> None:
        with cast("VariedSyncClient", shmrpc.sync.connect("varied")) as client:
            assert_type(client.plain(1, 1, "text", b"raw", True), bytes)
            assert_type(client.item({"id": "1"}), "Item")
            assert_type(client.ticks(1), "Generator[Point, None, None]")
            assert_type(client.total([1, 2]), int)
            assert_type(client.deep.er.add(1), int)
            assert_type(client.with_options(timeout=1).list(1), dict[str, int])
            client.plain("1", 1, "text", b"", True)  # refused
            client.total("abc")  # refused
            client.deep.er.add("1")  # refused
            client.absent(1)  # refused


    async def asynchronous(client: VariedSyncClient, numbers: AsyncIterator[int]) -> None:
        client.total(numbers)  # refused
        await client.list(1)  # refused
"""

#: The same for types that MessagePack has not.
CARRIED_PROGRAM = """
    from __future__ import annotations

    import array
    import collections
    import datetime
    import decimal
    import fractions
    import pathlib
    import uuid
    from collections.abc import AsyncGenerator, Sequence
    from typing import TYPE_CHECKING, Any, assert_type, cast

    import numpy as np
    import numpy.typing as npt

    import shmrpc

    if TYPE_CHECKING:
        from carried_client import Box, CarriedClient, CarriedSyncClient, Mixed, Sizes, SizesPlain, Span, Spot


    async def in_a_loop(image: npt.NDArray[np.uint8], floats: npt.NDArray[np.float32], anything: Any) -> None:
        async with cast("CarriedClient", shmrpc.connect("carried")) as client:
            third = fractions.Fraction(1, 3)
            value, exact, price, huge = await client.numbers(1.5, 1j, third, "1.5", 2**70)
            assert_type(value, complex)
            assert_type(exact, fractions.Fraction)
            assert_type(price, decimal.Decimal)
            await client.numbers(1, 1, third, 1, 1)
            raw, changeable, view, items, nothing = await client.buffers(b"raw", b"raw", array.array("d"))
            assert_type(raw, bytes)
            assert_type(changeable, bytearray)
            assert_type(items, "array.array[Any]")
            await client.ranges(range(3), slice(1), "a", pathlib.PurePosixPath("a"))
            ids, frozen = await client.sets({uuid.uuid4()}, [{1}])
            assert_type(ids, set[uuid.UUID])
            assert_type(frozen, frozenset[frozenset[int]])
            spots = (await client.sets_of_classes([{"x": 1, "y": 2}]))[0]
            assert_type(spots, "list[Spot]")
            assert_type((await client.abstract([], ["a"], {1}, {}))[0], list[Sequence[int]])
            assert_type((await client.derived("word"))[0], collections.Counter[str])
            sizes, outer, _ = await client.sizes({"sizes": {1}}, {"inner": {"sizes": [1]}}, {"number": 1})
            assert_type(sizes["sizes"], set[int])
            assert_type(outer["inner"], "Sizes")
            await client.sizes(sizes, outer, {"number": 1})
            start, of = await client.span((datetime.date.today(), {uuid.uuid4()}))
            assert_type(start, datetime.date)
            assert_type(of, frozenset[uuid.UUID])
            mixed = await client.mixed(
                {"image": image, "anything": 1, "raw": b"", "complexes": {1j, 1.5}, "ids": {"1"}, "path": "a"}
            )
            assert_type(mixed, "Mixed")
            assert_type(mixed["image"], npt.NDArray[np.uint8])
            assert_type(mixed["complexes"], set[complex])
            assert_type(mixed["ids"], list[str])
            box = mixed.get("box")
            assert box is not None
            assert_type(box["sizes"], "SizesPlain")
            assert_type(box["sizes"]["sizes"], list[int])
            assert_type(box["by_id"], dict[str, list[int]])
            assert_type(box["made"], datetime.datetime | str)
            assert_type(box, "Box")
            one, of_floats, flat, scalar = await client.arrays(image, floats, anything, np.float32(1))
            assert_type(one, "np.ndarray[Any, Any]")
            assert_type(of_floats, npt.NDArray[np.float32])
            assert_type(flat, np.ndarray[tuple[int], np.dtype[np.uint8]])
            assert_type(scalar, np.float32)
            several = await client.perhaps(floats, {"a": floats, "b": "text"})
            assert_type(several, list[npt.NDArray[np.float64] | float | None])
            await client.perhaps(None, {})
            await client.fixed(anything)
            assert_type(await client.invert(image), None)
            await client.invert(image, floats)
            assert_type(client.frames([image]), AsyncGenerator[npt.NDArray[np.uint8], None])
            assert_type(client.found(["1"]), AsyncGenerator[set[uuid.UUID], None])
            assert_type(await client.numpy(), "np.ndarray[Any, Any]")
            await client.table(anything)

            await client.numbers(1, "1", third, 1, 1)  # refused
            await client.numbers(1, 1, 1.5, 1, 1)  # refused
            await client.ranges([1], slice(1), "a", "a")  # refused
            await client.ranges(range(1), slice(1), pathlib.PurePosixPath("a"), "a")  # refused
            await client.buffers(b"", b"", [1.5])  # refused
            await client.mixed({"image": [1], "anything": 1, "raw": b"", "complexes": [], "ids": []})  # refused
            await client.arrays([[1]], floats, anything, np.float32(1))  # refused
            await client.arrays(image, image, anything, np.float32(1))  # refused
            await client.arrays(image, floats, anything, 1.5)  # refused
            await client.perhaps("text", {})  # refused
            await client.perhaps(None, {"a": image})  # refused
            await client.invert(floats)  # refused
            client.frames([floats])  # refused
            sizes["sizes"].append(1)  # refused
            box["sizes"]["sizes"].add(1)  # refused
            box["price"].quantize  # refused


    def in_threads(image: npt.NDArray[np.uint8]) -> None:
        with cast("CarriedSyncClient", shmrpc.sync.connect("carried")) as client:
            assert_type(client.sets([], [])[0], set[uuid.UUID])
            assert_type(client.numpy(), "np.ndarray[Any, Any]")
            assert_type(next(client.frames([image])), npt.NDArray[np.uint8])
            client.invert([1])  # refused
"""

#: And for classes that the server has registered and the client has not.
REGISTERED_PROGRAM = """
    from __future__ import annotations

    import uuid
    from typing import TYPE_CHECKING, Any, Literal, assert_type, cast

    import shmrpc

    if TYPE_CHECKING:
        from registered_client import Label, Pair, RegisteredClient, Spot


    async def in_a_loop() -> None:
        async with cast("RegisteredClient", shmrpc.connect("registered")) as client:
            assert_type(await client.colour("red"), dict[Literal["red", "blue"], int])
            spot = await client.spot({"id": "1"})
            assert_type(spot["id"], uuid.UUID)
            assert_type(spot["tags"], frozenset[str])
            await client.spot(spot)
            assert_type(await client.spots([spot]), "list[Spot]")
            label = await client.label({"theText": "a", "theSizes": {1}})
            assert_type(label["the_sizes"], set[int])
            vector, pair = await client.vector((1, 1j), (1, [2]))
            assert_type(vector["x"], complex)
            assert_type(pair["right"], set[int])
            holder = await client.holder({"spot": spot, "colours": ["red"], "ids": []})
            assert_type(holder["ids"], list[str])
            assert_type(holder["spot"], "Spot")
            assert_type(await client.weights([1.5], {"number": 1}), dict[str, Any])
            assert_type(await client.coded({"number": 1}), Any)

            await client.label(label)  # refused
            label["theText"]  # refused
            label["type"]  # refused
            vector[0]  # refused
            await client.colour("green")  # refused
            await client.coded(1)  # refused
"""


#: A comment for pyright: lines that a stub ignores for mypy's sake may be correct for pyright.
FOR_MYPY = "# pyright: reportUnnecessaryTypeIgnoreComment=false"

#: By the service whose stub it uses: a program, and how many of its lines are marked.
PROGRAMS = {"varied": (PROGRAM, 33), "carried": (CARRIED_PROGRAM, 17), "registered": (REGISTERED_PROGRAM, 6)}


def check(checker: str, folder: Path, *paths: Path, **settings: object) -> dict[str, set[int]]:
    """Return the lines of each file in which a checker finds an error."""
    if checker == "mypy":
        (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT}\ncache_dir = {folder / 'cache'}\n")
        command = ["-m", "mypy", "--config-file", str(folder / "mypy.ini"), *map(str, paths)]
    else:
        include = [os.path.relpath(path, folder) for path in paths]
        config = {"include": include, "extraPaths": [str(ROOT)], "pythonVersion": "3.11", **settings}
        (folder / "pyrightconfig.json").write_text(json.dumps(config))
        command = ["-m", "pyright", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=900, cwd=folder
    )
    assert re.search(r"Success|Found \d+ error|\d+ errors?, ", done.stdout), done.stdout + done.stderr
    assert "No source files found" not in done.stdout
    found: dict[str, set[int]] = {}
    for path, line in re.findall(r"^\s*(\S+?):(\d+)(?::\d+)?(?: -|:) error", done.stdout, re.MULTILINE):
        found.setdefault(Path(path).name, set()).add(int(line))
    return found


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the stub of each service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("stubs")))
        patch.delenv("SHMRPC_DIRECTORY", raising=False)
        with ServerProcess("tests.typing_contract.registered:registered"):  # Here they must not be registered.
            registered = run("stub", "registered").stdout
    described = {name: stub_text(describe_service(each)) for name, each in (("varied", varied), ("carried", carried))}
    return {**described, "registered": registered}


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def errors(
    request: pytest.FixtureRequest, stubs: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, set[int]]:
    """Return the lines with errors in all programs. The checker runs once, because each start takes seconds."""
    folder = tmp_path_factory.mktemp(request.param)
    paths = [CONTRACT / f"{name}.py" for name in ("in_a_loop", "in_threads", "queues", "stores", "topics")]
    for service, (source, _) in PROGRAMS.items():
        written, program = folder / f"{service}_client.pyi", folder / f"{service}_program.py"
        written.write_text(f"{stubs[service]}\n{FOR_MYPY}\n")
        program.write_text(textwrap.dedent(source))
        paths += [written, program]
    return check(request.param, folder, *paths, reportUnnecessaryTypeIgnoreComment="error")


def test_calls_by_function_queues_topics_and_stores_are_typed(errors: dict[str, set[int]]) -> None:
    # An unnecessary `type: ignore` is an error itself: each line that a checker must refuse is therefore refused.
    assert errors.keys() == {f"{service}_program.py" for service in PROGRAMS}, "nor is there one in a stub"


@pytest.mark.parametrize("service", PROGRAMS)
def test_a_stub_types_the_calls_of_a_client(errors: dict[str, set[int]], service: str) -> None:
    """A checker refuses exactly the marked lines of a program that uses a stub."""
    source, refused = PROGRAMS[service]
    lines = textwrap.dedent(source).splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert len(marked) == refused
    assert errors[f"{service}_program.py"] == marked
