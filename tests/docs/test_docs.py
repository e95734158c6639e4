"""The documents' examples run as they stand, and their commands, options and messages are the real ones.

Before a Python block stands how it is run: ``<!-- run: alone -->``, ``<!-- run: pytest -->``, or
``<!-- run: client TARGET OPTION... -->`` beside a server of TARGET, by default the calculator. It may await at its top
level, as in ``python -m asyncio``. One that begins with ``# NAME.py`` is a file, and the other blocks may import or
serve it; ``# NAME.py (continued)`` is the next part of it.
"""

from __future__ import annotations

import contextlib
import doctest
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import shmrpc.service.service
from shmrpc.cli.commands import main
from tests.helpers.nats_servers import NatsServer
from tests.helpers.prepared_python import run_prepared
from tests.helpers.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
#: The documents whose blocks of Python are run.
DOCUMENTS = {
    "README": README,
    **{page.relative_to(DOCS).with_suffix("").as_posix(): page.read_text() for page in sorted(DOCS.rglob("*.md"))},
}
#: The documents whose links are followed.
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmark" / "README.md"]
CALCULATOR = "examples.calculator:calculator"

_BLOCK = re.compile(r"(?:<!-- run: ([^\n]+) -->\n)?```python\n(.*?)```", re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)( \(continued\))?\n")
_RUN = """
import ast, asyncio, inspect, sys, warnings
warnings.simplefilter("error")
code = compile(sys.stdin.read(), "<example>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
run = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(run):
    asyncio.run(run)
"""

#: The examples of each document: the way to run them, or "", and the source.
BLOCKS = {name: _BLOCK.findall(text) for name, text in DOCUMENTS.items()}
EXAMPLES = [
    pytest.param(how, source, id=f"{name}-{source.splitlines()[0]}-{number}")
    for name, blocks in BLOCKS.items()
    for number, (how, source) in enumerate(blocks)
    if how
]


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Return a directory with the modules of the documents."""
    directory = tmp_path / "modules"
    directory.mkdir()
    for blocks in BLOCKS.values():
        for _, source in blocks:
            if name := _FILE.match(source):
                file = directory / name[1]
                assert file.exists() == bool(name[2]), f"{name[1]} has one beginning, before its other parts"
                with file.open("a") as parts:
                    parts.write(source)
    return directory


@contextlib.contextmanager
def _served(how: str, modules: Path) -> Iterator[None]:
    """Start what a block needs beside it."""
    match shlex.split(how):
        case ["alone" | "pytest" | "nats"]:
            yield
        case ["client", *rest]:
            with ServerProcess(*(rest or [CALCULATOR]), "--app-dir", str(modules)):
                yield
        case _:
            pytest.fail(f"expected 'alone', 'pytest', 'nats' or 'client TARGET OPTION...', got {how!r}")


def _command(how: str, source: str) -> list[str]:
    file = _FILE.match(source)
    if how == "pytest":
        assert file is not None
        return ["-m", "pytest", "-q", "-p", "no:asyncio", file[1]]
    return [file[1]] if file is not None else ["-c", _RUN]


def _run(how: str, source: str, modules: Path) -> str:
    """Run an example with warnings as errors; gives what it printed."""
    if how == "nats":
        nats = NatsServer()
        try:
            return _run("alone", source.replace("nats://127.0.0.1:4222", nats.url), modules)
        finally:
            nats.close()
    with _served(how, modules):
        command = _command(how, source)
        if command == ["-c", _RUN]:
            with contextlib.chdir(modules):
                done = run_prepared(*command, input=source, timeout=240)
        else:
            done = subprocess.run(
                [sys.executable, "-W", "error", *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                cwd=modules,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                timeout=240,
            )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return "" if how == "pytest" else done.stdout


@pytest.mark.parametrize(("how", "source"), EXAMPLES)
def test_every_example_runs(how: str, source: str, modules: Path) -> None:
    printed = _run(how, source, modules)
    assert printed.splitlines() == re.findall(r"print\(.*\)  # (.*)", source), "what it prints stands in the comments"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_example_is_left_out(name: str) -> None:
    blocks = BLOCKS[name]
    assert len(blocks) == DOCUMENTS[name].count("```python")
    not_run = [source for how, source in blocks if not how and not _FILE.match(source)]
    assert not_run == ([_calculator()] if name == "README" else [])


def _calculator() -> str:
    service = re.search(r"```python\n(import shmrpc\n\ncalculator.*?)```", README, re.DOTALL)
    assert service is not None
    return service[1]


def test_the_service_in_the_readme_is_the_example() -> None:
    example = (ROOT / "examples" / "calculator.py").read_text()
    code = [line for line in _calculator().splitlines() if line]
    assert [line for line in code if line not in example.splitlines()] == []


@pytest.mark.parametrize("name", [name for name, text in DOCUMENTS.items() if "\n$ shmrpc " in text])
def test_the_commands_are_ones_that_the_command_line_takes(name: str) -> None:
    lines = re.findall(r"^\$ (?:SHMRPC_\w+=\S+ )*shmrpc (.*)$", DOCUMENTS[name], re.MULTILINE)
    assert lines
    for line in lines:
        command, *arguments = shlex.split(line, comments=True)
        command_of = main.get_command(click.Context(main), command)
        assert command_of is not None, line
        command_of.make_context(command, [each for each in arguments if each != "&"])


def test_the_table_of_options_is_that_of_the_command() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \|[^|]*\| ([^|]*?) ?\|$", DOCUMENTS["how-to/serve"], re.MULTILINE)
    serve = main.get_command(click.Context(main), "serve")
    assert serve is not None
    options = [option for option in serve.params if isinstance(option, click.Option)]
    assert rows
    assert [(name, default.strip("`").replace(",", "")) for name, default in rows] == [
        (option.opts[-1].removeprefix("--"), _default(option) if option.show_default else "") for option in options
    ]


def _default(option: click.Option) -> str:
    return " ".join(option.default) if isinstance(option.default, tuple) else str(option.default).removesuffix(".0")


#: Where the README's links lead: they are whole, for the page of a package index.
_HOSTED = re.compile(r"https://github\.com/shmrpc/shmrpc/(?:blob|raw)/main/")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    named = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, re.MULTILINE))
    used = set(re.findall(r"\]\[([\w-]+)\]", text))
    assert used == set(named), "each name of a link is used, and each that is used is there"
    links = [*re.findall(r"\]\(([^)\s]+)\)", text), *named.values()]
    for link in links:
        path, _, anchor = _HOSTED.sub("", link).partition("#")
        if path.startswith("https://"):
            continue
        here = ROOT if _HOSTED.match(link) else page.parent
        target = here / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
            assert anchor in anchors, link


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_row_of_a_table_has_the_columns_of_its_heading(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        rows = [re.findall(r"(?<!\\)\|", row) for row in table.splitlines()]
        assert len(rows) > 2
        assert {len(row) for row in rows} == {len(rows[0])}, table
    assert not re.findall(r"^(?!\|).*\|$", text, re.MULTILINE), "the rest of a row that was wrapped"


@pytest.mark.parametrize(
    ("heading", "functions"),
    [
        ("connect", [shmrpc.connect, shmrpc.sync.connect]),
        ("Client.with_options", [shmrpc.Client.with_options, shmrpc.sync.Client.with_options]),
        ("serve", [shmrpc.serve]),
        ("Service", [shmrpc.Service]),
        ("Service.endpoint", [shmrpc.Service.endpoint]),
        ("topic", [shmrpc.topic, shmrpc.sync.topic]),
        ("subscribe", [shmrpc.subscribe, shmrpc.sync.subscribe]),
        ("queue", [shmrpc.queue, shmrpc.sync.queue]),
        ("memory", [shmrpc.memory, shmrpc.sync.memory]),
        ("Semaphore", [shmrpc.Semaphore, shmrpc.sync.Semaphore]),
        ("Lock", [shmrpc.Lock, shmrpc.sync.Lock]),
        ("Event", [shmrpc.Event, shmrpc.sync.Event]),
        ("Signal", [shmrpc.Signal, shmrpc.sync.Signal]),
        ("attach", [shmrpc.attach, shmrpc.sync.attach]),
        ("store", [shmrpc.store, shmrpc.sync.store]),
    ],
)
def test_the_reference_has_the_options_that_the_functions_have(
    heading: str, functions: list[Callable[..., object]]
) -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    section = re.split("\n###? ", reference.split(f"\n## {heading}\n")[1])[0]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? *\|", section, re.MULTILINE)
    for function in functions:
        parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
        assert rows == [
            (each.name, "" if each.default is each.empty else repr(each.default).replace("'", '"'))
            for each in parameters
        ]


def test_the_options_of_both_decorators_are_the_same() -> None:
    of_service, alone = (inspect.signature(each).parameters for each in (shmrpc.Service.endpoint, shmrpc.endpoint))
    assert [str(each) for each in of_service.values() if each.name != "self"] == [str(each) for each in alone.values()]


def test_doctests() -> None:
    assert doctest.testmod(shmrpc.service.service).attempted > 0
    assert doctest.testmod(shmrpc.service.service).failed == 0


def test_the_tests_that_the_page_on_reliability_names_are_there() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    sources = [
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "core").glob("src/**/*.rs"),
        *(ROOT / "core" / "tests").rglob("*.rs"),
    ]
    functions = {name for path in sources for name in re.findall(r"\b(?:def|fn) (\w+)\(", path.read_text())}
    named = [name for name in re.findall(r"`(\w+)`", page) if name.count("_") > 2]
    assert len(named) > 50
    assert [name for name in named if name not in functions] == []
    files = {path.name for path in sources}
    assert [name for name in re.findall(r"`([\w/]+\.(?:py|rs))`", page) if Path(name).name not in files] == []
