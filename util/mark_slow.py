#!/usr/bin/env python3
"""Mark the slowest tests with `@pytest.mark.slow`, by the durations in a JUnit report of pytest.

    util/mark_slow.py report.xml --budget 600

Functions are marked in the order of their longest case, until the durations of all others add up to at most the budget
in seconds. Marks that are no longer needed are removed. `make mark-slow` measures and marks.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_MARK: Final = "pytest.mark.slow"

#: A test function: the path of its file and its name.
Function = tuple[str, str]


def durations(report: Path) -> dict[Function, list[float]]:
    """Return the durations of each function's cases in seconds."""
    found: dict[Function, list[float]] = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        module, name = case.attrib["classname"], case.attrib["name"]
        found[module.replace(".", "/") + ".py", name.partition("[")[0]].append(float(case.attrib["time"]))
    return dict(found)


def slowest(found: dict[Function, list[float]], budget: float) -> set[Function]:
    """Return the functions to mark, so that the durations of the others add up to at most the budget."""
    total, marked = sum(map(sum, found.values())), set()
    for function in sorted(found, key=lambda each: max(found[each]), reverse=True):
        if total <= budget:
            break
        total -= sum(found[function])
        marked.add(function)
    return marked


def mark(source: str, slow: set[str]) -> str:
    """Return the source of a test module with marks on exactly these functions."""
    source = re.sub(rf"^ *@{_MARK}\n", "", source, flags=re.MULTILINE)
    source = re.sub(rf"^\n?pytestmark = {_MARK}\n", "", source, flags=re.MULTILINE)
    lines = source.split("\n")
    nodes = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in sorted((each for each in nodes if each.name in slow), key=lambda each: -each.lineno):
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        lines.insert(first - 1, f"{' ' * node.col_offset}@{_MARK}")
    marked = "\n".join(lines)
    if slow and not re.search(r"^import pytest$", marked, re.MULTILINE):
        future = "from __future__ import annotations\n"
        marked = marked.replace(future, f"{future}\nimport pytest\n", 1)
    return marked


def main() -> int:
    """Rewrite the marks of all measured test modules."""
    parser = argparse.ArgumentParser(description="Mark the slowest tests.")
    parser.add_argument("report", type=Path, help="a JUnit report of pytest")
    parser.add_argument("--budget", type=float, default=600, help="seconds of all tests without the mark (600)")
    options = parser.parse_args()
    found = durations(options.report)
    marked = slowest(found, options.budget)
    for file in sorted({file for file, _ in found}):
        path = ROOT / file
        path.write_text(mark(path.read_text(), {name for each, name in marked if each == file}))
    sys.stdout.write(f"{len(marked)} of {len(found)} test functions are marked as slow\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
