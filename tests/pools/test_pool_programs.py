"""Pools in programs of each kind: what workers have of `__main__`, and what goes to them by value."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shmrpc

#: Seconds that a program may take.
PATIENCE = 120

#: Asserts that classes of the program are one class on both sides, however they get there.
PROGRAM = """
import dataclasses, enum, functools, sys
import shmrpc

class Colour(enum.Enum):
    RED = 1

class Wrong(Exception):
    pass

@dataclasses.dataclass
class Point:
    x: int

    class Inner:
        pass

@shmrpc.register
@dataclasses.dataclass
class Known:
    x: int

def double(point):
    assert isinstance(point, Point)
    return Point(point.x * 2)

def fail():
    raise Wrong("own")

async def double_later(point):
    return double(point)

def make():
    class Local(Point):
        pass

    return Local

if __name__ == "__main__":
    class Guarded(Point):
        pass

    Local = make()
    limit = Point(3)
    prefix = functools.partial(lambda first, second: first == second, Point(1))
    with shmrpc.sync.pool(2, initializer=lambda: Point(7)) as pool:
        def run(function, *args):
            return pool.submit(function, *args).result()

        def mapped(function, *args):
            return next(pool.map(function, *([each] for each in args)))

        for call in (run, mapped):
            assert call(double, Point(3)) == Point(6)
            assert call(lambda colour: colour is Colour.RED, Colour.RED)
            assert call(lambda colours: colours == {Colour.RED: [Colour.RED]}, {Colour.RED: [Colour.RED]})
            assert call(lambda point: isinstance(point, Point) and point == Point(1), Point(1))
            assert call(lambda known: known == Known(1), Known(1))
            assert call(repr, Known(1)) == "Known(x=1)"
            assert isinstance(call(lambda ignored: Point.Inner(), 0), Point.Inner)
            assert call(lambda x: [Point(x), Colour.RED], 1) == [Point(1), Colour.RED]
            assert call(lambda point: double(point), Point(2)) == Point(4)
            assert call(lambda point: point.x < limit.x, Point(2))
            assert call(prefix, Point(1))
            assert type(call(lambda x: Guarded(x), 1)) is Guarded
            assert type(call(lambda x: Local(x), 1)) is Local
        assert run(double_later, Point(3)) == Point(6)
        assert type(pool.submit(fail).exception()) is Wrong
        assert run(lambda: shmrpc.worker().state) == Point(7)
    print("right")
"""
#: Changes that a program which others cannot import makes between two tasks, and the result of the function then.
CHANGES = {
    "a variable": ("limit = 1", "return limit", "limit = 2"),
    "a variable that was not there": ("", "return limit if 'limit' in globals() else 1", "limit = 2"),
    "a function": ("def limit(): return 1", "return limit()", "def limit(): return 2"),
    "a function of a function": (
        "def first(): return limit()\ndef limit(): return 1",
        "return first()",
        "def limit(): return 2",
    ),
    "a list": ("limit = [1]", "return limit[0]", "limit[0] = 2"),
    "within a tuple": ("limit = ([1],)", "return limit[0][0]", "limit[0][0] = 2"),
    "an array": ("import numpy\nlimit = numpy.ones(10_000, int)", "return int(limit[0])", "limit[0] = 2"),
    "an object": ("class Limit: pass\nlimit = Limit()\nlimit.it = 1", "return limit.it", "limit.it = 2"),
    "a class": ("class Limit: it = 1", "return Limit.it", "Limit.it = 2"),
    "an attribute": ("", "return getattr(told, 'limit', 1)", "told.limit = 2"),
    "a default": ("limit = 1", "return default[0]", "told.__defaults__ = ([2],)"),
    "its code": ("", "return 1", "told.__code__ = (lambda default=1: 2).__code__"),
}
#: A notebook's cells.
CHANGED = """
import shmrpc
threshold = 1
def is_over(x):
    return x > threshold
pool = shmrpc.sync.pool(1)
found = [pool.submit(is_over, 5).result()]
threshold = 10
print(*found, pool.submit(is_over, 5).result(), *pool.map(is_over, [5]))
pool.shutdown()
"""


def run(folder: Path, *arguments: str, text: str | None = None) -> str:
    """Run a program, which must succeed; return its output."""
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with the program as a file, a module, a package, a folder and an archive."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(PROGRAM)
    zipapp.create_archive(tmp_path / "package", tmp_path / "package.pyz")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py"],
        ["-m", "program"],
        ["-m", "package"],
        ["package"],
        ["package/__main__.py"],
        ["package.pyz"],
        ["-m", "pdb", "-c", "continue", "-c", "quit", "program.py"],
        ["-m", "pdb", "-c", "continue", "-c", "quit", "-m", "package"],
        ["-c", PROGRAM],
        ["-c", "import runpy; runpy.run_path('program.py', run_name='__main__')"],
        ["-c", "import sys; del sys.modules['__main__']; exec(open('program.py').read(), {'__name__': '__main__'})"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60].replace("\n", " "),
)
def test_classes_of_a_program_are_the_same_in_its_workers(folder: Path, arguments: list[str]) -> None:
    assert "right\n" in run(folder, *arguments)


def test_so_are_those_of_a_program_that_is_read_from_a_pipe(folder: Path) -> None:
    assert run(folder, "-", text=PROGRAM) == "right\n"


@pytest.mark.parametrize("arguments", [["program.py"], ["-m", "program"], ["-m", "package"], ["package"]])
def test_so_are_those_of_a_program_whose_coverage_is_measured(folder: Path, arguments: list[str]) -> None:
    pytest.importorskip("coverage")
    assert run(folder, "-m", "coverage", "run", *arguments) == "right\n"


def test_a_package_without_a_guard_is_not_run_by_its_workers(folder: Path) -> None:
    text = "import math, shmrpc\nwith shmrpc.sync.pool(1) as pool:\n    print(pool.submit(math.isqrt, 9).result())\n"
    (folder / "package" / "__main__.py").write_text(text)
    assert run(folder, "-m", "package") == "3\n"


def test_a_function_of_a_notebook_has_the_variables_of_its_task(tmp_path: Path) -> None:
    assert run(tmp_path, "-", text=CHANGED) == "True False False\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[shmrpc.sync.Pool]:
    with shmrpc.sync.pool(1) as made:
        yield made


@pytest.mark.parametrize("what", CHANGES)
def test_a_function_is_sent_again_when_what_it_refers_to_has_changed(pool: shmrpc.sync.Pool, what: str) -> None:
    before, body, change = CHANGES[what]
    cells: dict[str, Any] = {"__name__": "__main__"}
    exec(f"{before}\ndef told(default=[1]):\n    {body}", cells)
    told = cells["told"]
    assert [pool.submit(told).result(PATIENCE) for _ in range(2)] == [1, 1]
    exec(change, cells)
    assert [pool.submit(told).result(PATIENCE) for _ in range(2)] == [2, 2]
    assert list(pool.map(lambda ignored: told(), [0])) == [2]


def test_so_is_a_closure_and_a_callable_object(pool: shmrpc.sync.Pool) -> None:
    limit = 1

    def told() -> int:
        return limit

    class Told:
        limit = 1

        def __call__(self) -> int:
            return self.limit

    made = Told()
    assert [pool.submit(each).result(PATIENCE) for each in (told, made)] == [1, 1]
    limit = made.limit = 2
    assert [pool.submit(each).result(PATIENCE) for each in (told, made)] == [2, 2]


def test_an_unchanged_function_is_sent_once(pool: shmrpc.sync.Pool) -> None:
    cells: dict[str, Any] = {"__name__": "__main__"}
    exec("kept = []\nlimit = 1\ndef told():\n    kept.append(limit)\n    return len(kept)", cells)
    assert [pool.submit(cells["told"]).result(PATIENCE) for _ in range(3)] == [1, 2, 3]
    cells["limit"] = 2
    assert pool.submit(cells["told"]).result(PATIENCE) == 1


def test_a_submitted_function_has_the_variables_of_its_submission(pool: shmrpc.sync.Pool) -> None:
    cells: dict[str, Any] = {"__name__": "__main__"}
    exec("limit = 0\ndef told():\n    return limit", cells)
    futures = []
    for cells["limit"] in range(20):
        futures.append(pool.submit(cells["told"]))
    assert [future.result(PATIENCE) for future in futures] == list(range(20))
