"""The README's examples run as they stand; the calculator in it is the one in examples/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ServerProcess

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", README, re.DOTALL)


def run(source: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    assert [how for how, _ in EXAMPLES].count("client") >= 3
    assert len(EXAMPLES) == README.count("```python") - 1, "every example but the service is run"


@pytest.mark.parametrize("source", [source for how, source in EXAMPLES if how == "client"])
def test_examples_that_call(source: str) -> None:
    with ServerProcess("examples.calculator:calculator"):
        run(source)


@pytest.mark.parametrize("source", [source for how, source in EXAMPLES if how == "alone"])
def test_examples_that_stand_alone(source: str) -> None:
    run(source)


def test_the_messages_in_the_readme_are_the_ones_printed() -> None:
    (source,) = (source for _, source in EXAMPLES if "InvalidArguments" in source)
    expected = re.findall(r"print\(error\)  # (.*)", source)
    with ServerProcess("examples.calculator:calculator"):
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == expected


def test_the_service_in_the_readme_is_the_example() -> None:
    service = re.search(r"```python\n(import shmrpc\n\ncalculator.*?)```", README, re.DOTALL)
    assert service is not None
    example = (ROOT / "examples" / "calculator.py").read_text()
    code = [line for line in service[1].splitlines() if line]
    assert [line for line in code if line not in example.splitlines()] == []


def test_doctests() -> None:
    import doctest

    import shmrpc.service

    assert doctest.testmod(shmrpc.service).attempted > 0
    assert doctest.testmod(shmrpc.service).failed == 0
