"""``shmrpc store``: values of a store are printed, set and watched; errors have messages."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import Result

import shmrpc
from shmrpc.cli import main
from shmrpc.discovery.members import inspect_object
from tests.helpers.cli_runner import cli_runner
from tests.helpers.server_process import eventually

LONG = 60.0
NAME = f"cli_store{os.getpid()}"


def run(*arguments: str) -> Result:
    return cli_runner().invoke(main, ["store", *arguments])


@contextlib.contextmanager
def _watching(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "shmrpc", "store", "watch", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@shmrpc.shared
class Location:
    """Of a class that the command line does not import."""

    x: int
    names: list[str]


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(NAME) as opened:
        opened.update(scores={"ada": 1, 7: [1, 2]}, place=Location(1, ["here"]), n=3)
        yield opened


def test_ls_shows_stores_and_their_members(s: shmrpc.sync.Store) -> None:
    (line,) = [line for line in run("ls").stdout.splitlines() if line.startswith(NAME + " ")]
    assert line.split()[-1] == str(os.getpid())
    (found,) = [each for each in json.loads(run("ls", "--json").stdout) if each["name"] == NAME]
    assert found["members"] == [os.getpid()] and found["bytes"] > 0


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), {"scores": {"ada": 1, "7": [1, 2]}, "place": {"x": 1, "names": ["here"]}, "n": 3}),
        (("scores", "ada"), 1),
        (("scores", ":7", "1"), 2),
        (("place",), {"x": 1, "names": ["here"]}),
        (("place", "names", "0"), "here"),
        (("n",), 3),
    ],
    ids=["all", "key", "int key", "object", "field", "number"],
)
def test_get_follows_keys_indices_and_fields(s: shmrpc.sync.Store, path: tuple[str, ...], value: object) -> None:
    done = run("get", NAME, *path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == value


def test_very_large_ints_are_shown(s: shmrpc.sync.Store) -> None:
    s["huge"] = {"n": -(7**50_000), 1 << 60_000: "key"}
    for command in ("get", "dump"):
        done = run(command, NAME)
        assert done.exit_code == 0, done.output
        assert hex(-(7**50_000)) in done.stdout and hex(1 << 60_000) in done.stdout


def test_set_changes_a_key_an_index_and_a_field(s: shmrpc.sync.Store) -> None:
    for path, value in ((("scores", ":7", "0"), "[9]"), (("place", "x"), "5"), (("new",), '"text"')):
        assert run("set", NAME, *path, value).exit_code == 0
    assert s["scores"][7] == [[9], 2] and s["place"].x == 5 and s["new"] == "text"


def test_dump_prints_a_key_to_a_line(s: shmrpc.sync.Store) -> None:
    lines = [json.loads(line) for line in run("dump", NAME).stdout.splitlines()]
    assert {line["key"]: line["value"] for line in lines} == json.loads(run("get", NAME).stdout)


def test_watch_prints_each_change_and_the_last_one(s: shmrpc.sync.Store) -> None:
    with _watching(NAME, "scores") as command:
        assert _line(command) == {"ada": 1, "7": [1, 2]}
        for _ in range(200):
            shmrpc.atomic.add(s["scores"], "ada", 1)
        while (seen := _line(command))["ada"] < 201:
            pass
        assert seen == {"ada": 201, "7": [1, 2]}
        del s["scores"]
        _, said = command.communicate(timeout=LONG)
    assert (command.returncode, said) == (0, "")


def test_watch_ends_after_its_timeout(s: shmrpc.sync.Store) -> None:
    with _watching("--timeout", "0.05", NAME, "place") as command:
        out, said = command.communicate(timeout=LONG)
    assert (command.returncode, json.loads(out), said) == (0, {"x": 1, "names": ["here"]}, "")
    assert eventually(lambda: len((inspect_object(NAME) or pytest.fail("it is gone")).members) == 1)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("get", "nobody.has.this"), 3, "no process has it open; 'shmrpc store ls' lists"),
        (("get", NAME, "absent"), 3, "there is nothing at absent"),
        (("get", NAME, "n", "deeper"), 3, "there is nothing at n deeper"),
        (("get", NAME, "n", "real"), 3, "there is nothing at n real"),
        (("get", NAME, "place", "names", "0", "upper"), 3, "there is nothing at place names 0 upper"),
        (("get", NAME, "place", "copy"), 3, "there is nothing at place copy"),
        (("set", NAME, "n", "real", "5"), 3, "n real cannot be set: a value of type int has no fields"),
        (("get", NAME, "scores", ":{"), 2, "expected JSON after the colon"),
        (("watch", NAME, "n"), 3, "n is no list, dict, set or object"),
        (("set", NAME, "n"), 2, "Missing argument"),
        (("set", NAME, "n", "{"), 2, "JSON"),
        (("set", NAME, "scores", ":7", "5", "1"), 3, "cannot be set"),
        (("set", NAME, "place", "absent", "1"), 3, "cannot be set"),
    ],
    ids=[
        "no store",
        "no key",
        "no container",
        "an attribute of a number",
        "a method of a text",
        "a method of an object",
        "no field of a number",
        "no JSON key",
        "a number",
        "no value",
        "no JSON",
        "no index",
        "no field",
    ],
)
def test_wrong_arguments_have_an_error(
    s: shmrpc.sync.Store, arguments: tuple[str, ...], status: int, words: str
) -> None:
    done = run(*arguments)
    assert done.exit_code == status, done.output
    assert words in done.stderr


def test_a_queue_is_no_store() -> None:
    with shmrpc.sync.queue(NAME):
        done = run("get", NAME)
    assert done.exit_code != 0 and "not as a store" in done.stderr


def test_an_attribute_that_no_field_is_is_not_set(s: shmrpc.sync.Store) -> None:
    done = run("set", NAME, "place", "naems", "1")
    assert done.exit_code == 3 and "a Location has no field naems; it has x, names" in done.output
    assert s.copy()["place"] == Location(1, ["here"])
    assert run("set", NAME, "place", "x", "5").exit_code == 0
    assert s.pop("place") == Location(5, ["here"])


@shmrpc.shared(open=True)
class Loose:
    """Of a class that takes more attributes."""

    x: int = 1


def test_an_attribute_that_no_field_is_is_set_of_an_object_that_has_some(s: shmrpc.sync.Store) -> None:
    s["loose"] = Loose()
    s["loose"].more = 1
    assert run("set", NAME, "loose", "more", "2").exit_code == 0
    assert run("set", NAME, "loose", "new", "3").exit_code == 0
    assert vars(s["loose"].copy()) == {"x": 1, "more": 2, "new": 3}


def _completed(*words: str) -> list[str]:
    completed = ShellComplete(main, {}, "shmrpc", "_SHMRPC_COMPLETE")
    return [each.value for each in completed.get_completions(["store", *words[:-1]], words[-1])]


def test_names_and_paths_are_completed(s: shmrpc.sync.Store) -> None:
    s["sheet"] = {}
    assert NAME in _completed("get", NAME[:5])
    assert _completed("get", NAME, "") == ["scores", "place", "n", "sheet"]
    assert _completed("get", NAME, "s") == _completed("set", NAME, "s") == ["scores", "sheet"]
    assert _completed("get", NAME, "scores", "") == ["ada", ":7"]
    assert _completed("watch", NAME, "scores", ":7", "") == ["0", "1"]
    assert _completed("set", NAME, "place", "") == ["x", "names"]
    assert _completed("set", NAME, "place", "names", "") == ["0"]
    assert _completed("get", NAME, "missing", "") == _completed("get", NAME, "n", "") == []
    assert _completed("get", "there-is-no-such-store", "") == []


def test_values_of_classes_that_the_command_line_does_not_know_are_shown(s: shmrpc.sync.Store) -> None:
    code = (
        "import enum, sys, shmrpc\n"
        "class Colour(enum.Enum):\n    RED = 1\n"
        "class Money(int): pass\n"
        "class Custom: pass\n"
        "class Point:\n    x = 1\n"
        "shmrpc.register(Custom, lambda value: [1, 2], lambda content: Custom())\n"
        "with shmrpc.sync.attach(sys.argv[1]) as s:\n"
        "    s['all'] = [Colour.RED, Money(5), (Colour.RED, 1), {Colour.RED: Money(2)}, Custom()]\n"
    )
    subprocess.run([sys.executable, "-c", code, NAME], check=True, timeout=90)
    shown = run("get", NAME, "all")
    assert json.loads(shown.output) == ["Colour.RED", 5, ["Colour.RED", 1], {"Colour.RED": 2}, [1, 2]], shown.output
