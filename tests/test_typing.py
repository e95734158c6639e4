"""What type checkers make of clients: mypy and pyright must accept what works, and refuse what does not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shmrpc.introspection.describe import describe_service
from shmrpc.introspection.stubs import stub_text
from tests.typing_contract.varied import varied

ROOT = Path(__file__).parent.parent
CONTRACT = ROOT / "tests" / "typing_contract"
CHECKERS = ["mypy", "pyright"]

#: Uses of the stub's clients: a line that must be refused ends with `# refused`.
PROGRAM = """
    from __future__ import annotations

    import datetime
    import uuid
    from collections.abc import AsyncGenerator, AsyncIterator, Generator
    from typing import TYPE_CHECKING, Any, Literal, assert_type, cast

    import shmrpc

    if TYPE_CHECKING:
        from varied_client import Item, ItemInput, Line, Place, Point, VariedClient, VariedSyncClient


    async def in_a_loop(numbers: AsyncIterator[int]) -> None:
        async with cast("VariedClient", shmrpc.connect("varied")) as client:
            assert_type(await client.plain(1, 1, "text", bytearray(b"raw"), True), bytes)
            assert_type(await client.list(1), dict[str, int])
            assert_type(await client.zoned(datetime.datetime.now(datetime.UTC)), datetime.datetime)
            assert_type(await client.datetime(), datetime.datetime | str)
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
            assert_type(await client.Place("red"), "Place")
            place: Place = {"street": "Main", "number": 1}
            assert_type(await client.place(place), "Place")
            ids: list[uuid.UUID] = []
            whole: list[int] = []
            await client.arrays((1,), [1, "one"], whole, {"a"}, ids)
            by_id: dict[uuid.UUID, Point] = {uuid.uuid4(): {"x": 1}}
            by_text: dict[str, Point] = {"1": {"x": 1}}
            await client.maps({"a": 1}, by_id)
            await client.maps({}, by_text)
            await client.choices("red", 2, 3, None)
            await client.shape({"type": "Circle", "radius": 1})
            assert_type(await client.vector((1, 2), (1,)), list[list[float | str] | list[int | str]])
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


def check(checker: str, folder: Path, *paths: Path, **settings: object) -> dict[str, set[int]]:
    """The lines of each file in which a checker finds an error."""
    if checker == "mypy":
        (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT}\ncache_dir = {folder / 'cache'}\n")
        command = ["-m", "mypy", "--config-file", str(folder / "mypy.ini"), *map(str, paths)]
    else:
        include = [os.path.relpath(path, folder) for path in paths]
        config = {"include": include, "extraPaths": [str(ROOT)], "pythonVersion": "3.11", **settings}
        (folder / "pyrightconfig.json").write_text(json.dumps(config))
        command = ["-m", "pyright", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=150, cwd=folder
    )
    assert re.search(r"Success|Found \d+ error|\d+ errors?, ", done.stdout), done.stdout + done.stderr
    assert "No source files found" not in done.stdout
    found: dict[str, set[int]] = {}
    for path, line in re.findall(r"^\s*(\S+?):(\d+)(?::\d+)?(?: -|:) error", done.stdout, re.MULTILINE):
        found.setdefault(Path(path).name, set()).add(int(line))
    return found


@pytest.mark.parametrize("checker", CHECKERS)
def test_calls_by_function_are_typed(checker: str, tmp_path: Path) -> None:
    # An ignored error that is none is an error itself: so what is to be refused is refused.
    paths = [CONTRACT / "in_a_loop.py", CONTRACT / "in_threads.py"]
    assert check(checker, tmp_path, *paths, reportUnnecessaryTypeIgnoreComment="error") == {}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_stub_types_the_calls_of_a_client_without_the_source(checker: str, tmp_path: Path) -> None:
    stub, program = tmp_path / "varied_client.pyi", tmp_path / "program.py"
    stub.write_text(stub_text(describe_service(varied)))
    program.write_text(textwrap.dedent(PROGRAM))
    lines = textwrap.dedent(PROGRAM).splitlines()
    refused = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert len(refused) == 33
    assert check(checker, tmp_path, stub, program) == {"program.py": refused}
