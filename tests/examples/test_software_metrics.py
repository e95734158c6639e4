"""The methods of the library are all measured, each once, by however many processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import ROOT, standard_library
from examples.software_metrics.methods import Metrics, measure, methods_in

SOURCE = '''
class One:
    """A class."""

    @property
    def first(self) -> int:
        text = """
less indented
"""
        return len(text) if text and self else 0

    def second(self): pass

    class Inner:
        async def third(self):
            for x in [y for y in self if y]:
                while x:
                    x -= 1

def function():
    class Local:
        def fourth(self): ...
'''


def test_the_methods_of_a_file_are_found_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    methods = sorted(methods_in(str(path)), key=lambda method: method.index("def"))
    assert len(methods) == 4
    assert [measure(method) for method in methods if "second" in method] == [Metrics(1, 1, 2, 1)]
    assert [measure(method) for method in methods if "third" in method] == [Metrics(1, 4, 4, 4)]
    # A condition, an `and`, and the method itself.
    assert [measure(method).complexity for method in methods if "first" in method] == [3]


@pytest.mark.parametrize("content", [b"def (", b"x = '\\0'\0", b"# coding: nonsense\n"])
def test_a_file_that_cannot_be_parsed_has_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(content)
    assert methods_in(str(path)) == []


def test_every_method_of_the_library_can_be_measured_by_itself() -> None:
    for name in standard_library(None)[::40]:
        for method in methods_in(str(ROOT / name)):
            assert measure(method).methods == 1


def test_pools_find_what_one_process_does() -> None:
    command = [sys.executable, "-m", "examples.software_metrics", "--limit", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a pool of 2" in done.stdout
    assert "All found the same." in done.stdout
