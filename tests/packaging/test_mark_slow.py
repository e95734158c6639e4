"""util/mark_slow.py marks the slowest test functions, and only them."""

from __future__ import annotations

from pathlib import Path

from util import mark_slow

SOURCE = """from __future__ import annotations

import pytest


@pytest.mark.parametrize("x", [1, 2])
def test_slow(x):
    pass


@pytest.mark.slow
async def test_fast():
    pass
"""


def test_marks_move_to_the_functions_that_are_slow() -> None:
    marked = mark_slow.mark(SOURCE, {"test_slow"})
    assert marked.count("@pytest.mark.slow\n") == 1
    assert '@pytest.mark.slow\n@pytest.mark.parametrize("x", [1, 2])\ndef test_slow' in marked
    assert mark_slow.mark(marked, {"test_slow"}) == marked
    assert mark_slow.mark(mark_slow.mark(marked, set()), {"test_fast"}) == SOURCE


def test_a_mark_of_a_whole_module_is_replaced_by_marks_of_functions() -> None:
    whole = SOURCE.replace("import pytest\n", "import pytest\n\npytestmark = pytest.mark.slow\n")
    assert "pytestmark" not in mark_slow.mark(whole, {"test_fast"})
    assert mark_slow.mark(whole, {"test_fast"}).count("pytest.mark.slow") == 1


def test_functions_with_the_longest_cases_are_marked_until_the_rest_is_within_the_budget() -> None:
    found = {("a.py", "test_long"): [5.0], ("a.py", "test_many"): [0.5] * 12, ("b.py", "test_short"): [1.0]}
    assert mark_slow.slowest(found, 7.0) == {("a.py", "test_long")}
    assert mark_slow.slowest(found, 12.0) == set()
    assert mark_slow.slowest(found, 6.5) == {("a.py", "test_long"), ("b.py", "test_short")}


def test_durations_are_read_from_a_junit_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a.test_b" name="test_c[1]" time="0.5"/>'
        '<testcase classname="tests.a.test_b" name="test_c[2]" time="1.5"/></testsuite></testsuites>'
    )
    assert mark_slow.durations(report) == {("tests/a/test_b.py", "test_c"): [0.5, 1.5]}
