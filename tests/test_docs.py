"""The documents' examples run as they stand, and their commands, options and messages are the real ones.

Before a Python block stands how it is run: ``<!-- run: alone -->``, ``<!-- run: pytest -->``, or
``<!-- run: client TARGET OPTION... -->`` beside a server of TARGET, by default the calculator. It may await at its top
level, as in ``python -m asyncio``. One that begins with ``# NAME.py`` is a file, and the other blocks may import or
serve it.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import shmrpc.service
from shmrpc.cli import main
from tests.support import ServerProcess

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "guide.md").read_text()
DOCUMENTS = {"README": README, "guide": GUIDE}
CALCULATOR = "examples.calculator:calculator"

_BLOCK = re.compile(r"(?:<!-- run: ([^\n]+) -->\n)?```python\n(.*?)```", re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
_RUN = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "<example>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
run = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(run):
    asyncio.run(run)
"""

#: How it is run, or "", and the source.
BLOCKS = {name: _BLOCK.findall(text) for name, text in DOCUMENTS.items()}
EXAMPLES = [
    pytest.param(how, source, id=f"{name}-{source.splitlines()[0]}-{number}")
    for name, blocks in BLOCKS.items()
    for number, (how, source) in enumerate(blocks)
    if how
]


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A directory with the modules of the documents."""
    directory = tmp_path / "modules"
    directory.mkdir()
    for blocks in BLOCKS.values():
        for _, source in blocks:
            if name := _FILE.match(source):
                assert not (directory / name[1]).exists(), f"there are two {name[1]}"
                (directory / name[1]).write_text(source)
    return directory


@contextlib.contextmanager
def _served(how: str, modules: Path) -> Iterator[None]:
    """Beside what a block is run."""
    match shlex.split(how):
        case ["alone" | "pytest"]:
            yield
        case ["client", *rest]:
            with ServerProcess(*(rest or [CALCULATOR]), "--app-dir", str(modules)):
                yield
        case _:
            pytest.fail(f"expected 'alone', 'pytest' or 'client TARGET OPTION...', got {how!r}")


def _command(how: str, source: str) -> list[str]:
    file = _FILE.match(source)
    if how == "pytest":
        assert file is not None
        return ["-m", "pytest", "-q", "-p", "no:asyncio", "-p", "shmrpc.testing.plugin", file[1]]
    return [file[1]] if file is not None else ["-c", _RUN]


def _run(how: str, source: str, modules: Path) -> str:
    """Runs an example, warnings as errors; what it printed."""
    with _served(how, modules):
        done = subprocess.run(
            [sys.executable, "-W", "error", *_command(how, source)],
            input=source,
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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_commands_are_ones_that_the_command_line_takes(name: str) -> None:
    lines = re.findall(r"^\$ (?:SHMRPC_\w+=\S+ )*shmrpc (.*)$", DOCUMENTS[name], re.MULTILINE)
    assert lines
    for line in lines:
        command, *arguments = shlex.split(line, comments=True)
        command_of = main.get_command(click.Context(main), command)
        assert command_of is not None, line
        command_of.make_context(command, [each for each in arguments if each != "&"])


def test_the_table_of_options_is_that_of_the_command() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \|[^|]*\| ([^|]*?) ?\|$", GUIDE, re.MULTILINE)
    serve = main.commands["serve"]
    options = [option for option in serve.params if isinstance(option, click.Option)]
    assert rows
    assert [(name, default.strip("`").replace(",", "")) for name, default in rows] == [
        (option.opts[-1].removeprefix("--"), str(option.default).removesuffix(".0") if option.show_default else "")
        for option in options
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    text = DOCUMENTS[name]
    here = ROOT / "docs" if name == "guide" else ROOT
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        target = here / path if path else (here / f"{name}.md")
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
            assert anchor in anchors, link


def test_doctests() -> None:
    assert doctest.testmod(shmrpc.service).attempted > 0
    assert doctest.testmod(shmrpc.service).failed == 0
