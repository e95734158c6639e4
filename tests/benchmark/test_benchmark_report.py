"""The benchmark's report: standings, files, page, pictures, comparison and command line, on rows that are made up."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from benchmark import environment
from benchmark.__main__ import main
from benchmark.questions import QUESTIONS, queue_study, topic_study
from benchmark.report import charts, compare, files, markdown, page, plots, tables, terminal
from benchmark.report.files import Outcome, Unreadable
from benchmark.report.standings import LineStanding, standings
from benchmark.rivals import RIVALS
from benchmark.rows import Line, Role, Row
from benchmark.run import QUICK, Run
from benchmark.subjects import OURS
from benchmark.verdict import Verdict
from tests.docs.test_docs import ROOT

SMALL: Final = Line("small")
SPARSE: Final = Line("sparse", "every 2 ms")
RECORD: Final = Line("record")
STREAMS: Final = Line("streams", "", "rate", "/s", higher_is_better=True)
IDLE: Final = Line("idle", "server", "ms", "ms")
VOID_ELEMENTS: Final = {"meta", "link", "br", "input", "img", "hr"}


def row(line: Line, subject: str, role: Role, rounds: Sequence[float], *, steps: bool = False, note: str = "") -> Row:
    made = Row(line, subject, role, list(rounds), note=note)
    if rounds and line.lead == "p50":
        made.p50 = made.value or 0.0
        made.p90, made.p99, made.p999, made.longest = (made.p50 * times for times in (1.2, 2, 5, 40))
        made.calls_per_second, made.cpu = 1e6 / (made.p50 or 1.0), made.p50 * 2
    if steps:
        times = [(made.value or 1.0) * (1 + 0.02 * number) for number in range(500)]
        made.steps = [(time, 1 - 0.97 ** (number + 1)) for number, time in enumerate(times)]
        made.steps[-1] = (times[-1], 1.0)
    return made


def near(figure: float) -> list[float]:
    """Five rounds."""
    return [figure * share for share in (0.99, 1.0, 1.01, 1.02, 0.98)]


def won_and_lost() -> list[Row]:
    return [
        row(SMALL, "ping-pong of a word", "floor", near(0.1), steps=True),
        row(SMALL, "shmrpc, uvloop", "ours", near(1.4), steps=True),
        row(SMALL, "shmrpc, sync", "ours", near(1.5), steps=True),
        row(SMALL, "<b>", "rival", near(21), steps=True),
        row(SMALL, "socket, uvloop", "rival", near(60), steps=True),
        row(SMALL, "direct await", "context", near(0.05)),
        row(SMALL, "rpyc", "rival", [], note="not installed: rpyc (pip install --group rivals)"),
        row(SPARSE, "shmrpc, uvloop", "ours", near(30), steps=True),
        row(SPARSE, "<b>", "rival", near(30.1), steps=True),
        row(STREAMS, "shmrpc, uvloop", "ours", near(100_000)),
        row(STREAMS, "socket, uvloop", "rival", near(400_000)),
        row(IDLE, "shmrpc, uvloop", "ours", [0.0] * 5),
        row(IDLE, "socket, uvloop", "rival", [0.0, 0.0, 1.0, 1.0, 1.0]),
        row(Line("memory", "connection", "KiB", "KiB"), "shmrpc, uvloop", "ours", near(140)),
    ]


def swept() -> list[Row]:
    subjects: list[tuple[str, Role, float]] = [
        ("shmrpc, uvloop", "ours", 1.4), ("socket", "rival", 60), ("codec alone", "floor", 0.2),
    ]  # fmt: skip
    made = []
    for subject, role, start in subjects:
        for question, size in itertools.product(("payload-bytes", "payload-ints"), (1, 1_000, 1_000_000)):
            made.append(row(Line(question, f"{size:,}"), subject, role, near(start + size / 1e4)))
        for question, count in itertools.product(("in-flight", "many-clients"), (1, 8, 64)):
            line = Line(question, f"{count}", "rate", "/s", higher_is_better=True)
            made.append(row(line, subject, role, near(1e6 / start)))
    for size, readers, batch in itertools.product((8, 64), (1, 2), (1, 100)):
        line = Line(queue_study.NAME, queue_study.case(size, 1, readers), "rate", "/s", higher_is_better=True)
        made.append(row(line, queue_study.batches(batch), "ours", near(1e6 * batch / size)))
    for size, readers in itertools.product(topic_study.SIZES, topic_study.READERS):
        line = Line(topic_study.NAME, topic_study.case(size, readers), "rate", "/s", higher_is_better=True)
        made += [row(line, "shmrpc", "ours", near(1e3 * size)), row(line, "TCP", "rival", near(1e7 / readers))]
    return made


def outcome(rows: list[Row], *, complete: bool = True) -> Outcome:
    known = {"cpu": "<a CPU>", "pinned": False, "packages": {"msgspec": "0.20"}, "load before": [0.1, 0.2, 0.3]}
    judged = [
        Verdict("small", "≤ 2 µs", "1.4 µs", True),
        Verdict("sparse", "≤ 20 µs", "30 µs", False),
        Verdict("bulk", "≥ 2 ×", "", None),
    ]
    return Outcome("full", known, rows, judged, {"rpyc": "not installed: rpyc"}, complete)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    files.write(outcome(won_and_lost() + swept()), path)
    return path


def cli(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


# Standings.


def standing(line: Line) -> LineStanding:
    return next(each for each in standings(won_and_lost()) if each.line == line)


def test_our_best_is_held_against_the_best_rival_and_the_floor() -> None:
    small = standing(SMALL)
    assert (small.standing, small.ours and small.ours.subject, small.rival and small.rival.subject) == (
        "won", "shmrpc, uvloop", "<b>",
    )  # fmt: skip
    assert small.ratio == pytest.approx(15)
    assert small.floors == pytest.approx(14)


def test_intervals_that_overlap_are_about_even() -> None:
    assert standing(SPARSE).standing == "even"


def test_the_lower_rate_has_lost() -> None:
    streams = standing(STREAMS)
    assert streams.standing == "lost"
    assert streams.ratio == pytest.approx(0.25)


def test_nothing_against_something_has_no_ratio() -> None:
    idle = standing(IDLE)
    assert (idle.standing, idle.ratio) == ("even", None)


def test_less_than_nothing_has_no_ratio() -> None:
    line = Line("memory", "", "KiB", "KiB")
    (found,) = standings([row(line, "shmrpc", "ours", [140.0]), row(line, "socket", "rival", [-49.0])])
    assert (found.standing, found.ratio) == ("lost", None)
    assert changed([-1.0] * 5, near(3), line).worse == math.inf
    assert changed(near(3), [-1.0] * 5, line).worse == 0


def test_a_line_without_rivals_stands_alone() -> None:
    assert {each.line.question for each in standings(won_and_lost()) if each.standing == "alone"} == {"memory"}


def test_one_round_has_to_be_ahead_by_more() -> None:
    for rival, expected in ((1.05, "even"), (1.2, "won"), (0.8, "lost")):
        rows = [row(SMALL, "shmrpc", "ours", [1.0]), row(SMALL, "other", "rival", [rival])]
        assert standings(rows)[0].standing == expected


def test_of_several_floors_of_a_line_the_highest_counts() -> None:
    rows = [row(RECORD, "a", "floor", [1.0]), row(RECORD, "b", "floor", [5.0]), row(RECORD, "shmrpc", "ours", [10.0])]
    assert standings(rows)[0].floors == 2


def test_a_line_without_floors_takes_that_of_the_question_of_floors() -> None:
    threads = Line("threads", "record")
    rows = [
        row(Line("floors", "codec, record"), "msgpack", "floor", [9.0]),
        row(Line("floors", "codec, record"), "msgspec", "floor", [5.0]),
        row(threads, "shmrpc", "ours", [10.0]),
    ]
    found = standings(rows)
    assert [each.line for each in found] == [threads]
    assert found[0].floors == 2


# Tables.


def shown(result: Outcome, width: int = 200) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    terminal.show(result, console)
    console.file.close()
    return console.export_text()


def test_the_terminal_says_first_how_we_stand_and_plainly_where_we_lose() -> None:
    text = shown(outcome(won_and_lost()))
    assert text.index("Standings") < text.index("Lost: streams") < text.index("A small call")
    assert "4 lines: 1 won, 2 about even, 1 lost" in text
    assert "socket, uvloop is ahead by 4.00 ×: 400,000/s against 100,000/s of shmrpc, uvloop" in text
    assert "not installed: rpyc" in text
    assert "MISSED" in text
    assert "INCOMPLETE" not in text


def test_ratios_stand_before_times() -> None:
    small = next(table for table in tables.questions(outcome(won_and_lost())) if table.title.startswith("A small call"))
    assert [column.name for column in small.columns][:4] == ["subject", "floor", "best rival", "p50, µs"]
    ours = next(cells for cells in small.groups[0] if cells.tone == "ours")
    assert ours.texts[:4] == ("shmrpc, uvloop", "14.0 ×", "15.0 ×", "1.40")


def test_a_narrow_terminal_shows_fewer_columns_with_a_note() -> None:
    assert "99.9" in shown(outcome(won_and_lost()), 100)
    assert "shows more" in shown(outcome(won_and_lost()), 100)


def test_markdown_has_as_many_cells_in_each_row_as_its_head() -> None:
    text = markdown.markdown(outcome(won_and_lost()))
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert "\\<b>" in text
    assert "Lost: streams" in text


# Files.


def test_a_written_result_is_read_back_equal(tmp_path: Path) -> None:
    before = outcome(won_and_lost() + swept(), complete=False)
    files.write(before, tmp_path / "result.json")
    after = files.read(tmp_path / "result.json")
    assert (after.form, after.environment, after.targets) == (before.form, before.environment, before.targets)
    assert (after.absent, after.complete) == (before.absent, False)
    for old, new in zip(before.rows, after.rows, strict=True):
        assert (new.line, new.subject, new.role, new.note) == (old.line, old.subject, old.role, old.note)
        assert new.rounds == pytest.approx(old.rounds, rel=1e-5)
    assert list(tmp_path.iterdir()) == [tmp_path / "result.json"]


def test_a_full_result_stays_small(tmp_path: Path) -> None:
    files.write(outcome(won_and_lost()[:5] * 120), tmp_path / "result.json")
    assert (tmp_path / "result.json").stat().st_size < 2_000_000


def test_a_thinned_distribution_keeps_its_ends_and_its_shape() -> None:
    steps = [(1.01**number, 1 - 0.985 ** (number + 1)) for number in range(1000)] + [(1e5, 1.0)]
    kept = files.thinned(steps)
    assert len(kept) <= 150
    assert (kept[0], kept[-1]) == (steps[0], steps[-1])
    assert kept == sorted(kept)
    shares = [-math.log10(1 - share) for _, share in kept[:-1]]
    assert max(later - before for before, later in itertools.pairwise(shares)) < 0.2


def test_figures_that_json_has_no_word_for_do_not_lose_the_result(tmp_path: Path) -> None:
    odd = row(SMALL, "shmrpc", "ours", [1.0, math.inf, 2.0])
    odd.extra = {"ratio": math.nan, "fine": 1.0}
    files.write(outcome([odd]), tmp_path / "result.json")
    (back,) = files.read(tmp_path / "result.json").rows
    assert (back.rounds, back.extra) == ([1.0, 2.0], {"fine": 1.0})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("hello", "not a result"),
        ("[1]", "not a result"),
        ('{"rows": []}', "not a result"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1}', "damaged"),
        ('{"format":1,"form":"x","environment":{},"targets":[],"absent":{},"rows":[{"subject":"x"}]}', "damaged"),
        (b"\xff\xfe\x00", "not a result"),
    ],
)
def test_a_file_that_is_no_result_is_refused_with_a_reason(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Unreadable, match=complaint):
        files.read(path)
    for arguments in (("show", path), ("compare", path, path)):
        done = cli(*arguments)
        assert done.exit_code == 1
        assert done.output.startswith("Error:")
        assert complaint in done.output


# The page and the pictures.


class Balance(HTMLParser):
    """Every element that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    text = page.page(outcome(won_and_lost() + swept()))
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    # Small calls as bars; their distribution and that of sparse ones; two sweeps; two kinds of scaling; the study.
    assert parser.seen.count("svg") == 11
    assert parser.references == ["data:,"]
    assert "script" not in parser.seen
    assert "http" not in re.sub(r'xmlns(:xlink)?="http://www.w3.org/\d+/\w+"', "", text)
    assert not re.search(r"url\((?!#)|@import", text)


def test_names_are_escaped_on_the_page() -> None:
    text = page.page(outcome(won_and_lost()))
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert "&lt;a CPU&gt;" in text


def test_the_page_says_where_we_lose_and_what_is_missing() -> None:
    text = page.page(outcome(won_and_lost(), complete=False))
    for said in (
        "Where shmrpc loses",
        "streams: socket, uvloop is ahead",
        "not installed: rpyc",
        "Incomplete",
        "MISSED",
    ):
        assert said in text


def test_a_page_of_nothing_is_a_page() -> None:
    parser = Balance()
    parser.feed(page.page(outcome([])))
    assert parser.open == []
    assert "svg" not in parser.seen


def test_a_plot_names_its_title_its_axes_and_its_subjects() -> None:
    rows = won_and_lost() + swept()
    drawable: list[charts.Chart | charts.Bars] = [
        *charts.latency(rows),
        *charts.sizes(rows),
        *charts.scaling(rows),
        *charts.study(rows),
        *charts.small_calls(rows),
    ]
    assert len(drawable) > 5
    for chart in drawable:
        drawn = plots.draw_svg(chart)
        texts = "".join(ElementTree.fromstring(drawn).itertext())
        names = [name for name, _, _ in chart.bars] if isinstance(chart, charts.Bars) else [chart.x, chart.y]
        for text in (chart.title, *names):
            assert text in texts
        assert "nan" not in drawn


def test_of_many_rivals_a_plot_holds_the_best_form_of_each() -> None:
    rows = []
    for tasks in ("8", "64"):
        line = Line("in-flight", tasks, "rate", "/s", higher_is_better=True)
        forms = itertools.product(range(1, 9), (0, 0.5))
        rows += [row(line, f"rival {number}, {form}", "rival", [number + form]) for number, form in forms]
        rows.append(row(line, "shmrpc", "ours", [1.0]))
    (chart,) = charts.scaling(rows)
    assert {each.name for each in chart.series} == {"shmrpc", *(f"rival {number}, 0.5" for number in range(4, 9))}
    assert chart.left_out == 11


def test_cases_are_read_however_they_are_written() -> None:
    for case in ("1,000", "1000", "1,000 bytes", "1_000"):
        lines = Line("payload-bytes", case), Line("payload-bytes", "10"), Line("payload-bytes", "none")
        (chart,) = charts.sizes([row(line, "shmrpc", "ours", [1.0]) for line in lines])
        assert chart.series[0].points == ((10, 1.0), (1000, 1.0))


def test_over_one_place_there_is_no_line() -> None:
    assert charts.sizes([row(Line("payload-bytes", "1,000"), "shmrpc", "ours", [1.0])]) == []


def test_pictures_are_drawn(tmp_path: Path) -> None:
    drawn = plots.draw_pngs(outcome(won_and_lost() + swept()), tmp_path)
    assert [path.name for path in drawn] == ["latency.png", "sizes.png", "scaling.png", "queues.png", "topics.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


# Comparison.


def test_exact_probabilities_of_small_cases() -> None:
    # By counting: 5 against 5 all beyond, 2 of 252; 3 against 3, 2 of 20; one pair changed over, 4 of 252.
    assert compare.rank_sum_p([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert compare.rank_sum_p([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]) == pytest.approx(2 / 252)
    assert compare.rank_sum_p([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)
    assert compare.rank_sum_p([1, 2, 3, 4, 6], [5, 7, 8, 9, 10]) == pytest.approx(4 / 252)
    assert compare.rank_sum_p([1], [2]) == 1
    assert compare.rank_sum_p([1, 3], [2, 4]) == pytest.approx(4 / 6)
    assert compare.rank_sum_p([1, 1, 1], [1, 1, 1]) == 1


def test_exact_probabilities_are_those_of_dealing_out_every_way() -> None:
    def ranks_of(values: Sequence[float], all_values: Sequence[float]) -> float:
        return sum(
            sum(each < value for each in all_values) + sum(each == value for each in all_values) / 2 + 0.5
            for value in values
        )

    for first, second in (([1.0, 2, 2, 5], [2.0, 3, 7]), ([4.0, 4, 9], [1.0, 4, 4, 4, 8]), ([3.0, 1], [3.0, 3, 2])):
        together = [*first, *second]
        mean = len(first) * (len(together) + 1) / 2
        off = abs(ranks_of(first, together) - mean)
        dealt = [abs(ranks_of(each, together) - mean) for each in itertools.combinations(together, len(first))]
        expected = sum(each >= off - 1e-9 for each in dealt) / len(dealt)
        assert compare.rank_sum_p(first, second) == pytest.approx(expected)


def changed(old: Sequence[float], new: Sequence[float], line: Line = SMALL) -> compare.Change:
    rows = [outcome([row(line, "shmrpc", "ours", rounds)]) for rounds in (old, new)]
    (change,) = compare.compare(*rows).changes
    return change


def test_a_slowdown_is_found() -> None:
    change = changed(near(1.0), near(1.2))
    assert (change.verdict, change.fails) == ("slower", True)
    assert change.worse == pytest.approx(1.2)
    assert changed(near(1.2), near(1.0)).verdict == "faster"
    assert changed(near(1.0), near(1.2), STREAMS).verdict == "faster"
    assert changed(near(1.2), near(1.0), STREAMS).verdict == "slower"


def test_noise_is_none() -> None:
    change = changed([1.0, 1.3, 0.9, 1.1, 1.2], [1.1, 1.4, 0.95, 1.15, 1.25])
    assert (change.verdict, change.fails) == ("within noise", False)
    assert changed(near(1.0), near(1.0)).verdict == "within noise"


def test_a_small_slowdown_is_reported_but_fails_nothing() -> None:
    change = changed([1.0, 1.001, 1.002, 1.003, 1.004], [1.02, 1.021, 1.022, 1.023, 1.024])
    assert (change.verdict, change.fails) == ("slower", False)


def test_too_few_rounds_are_called_so() -> None:
    assert changed([1.0], [9.0]).verdict == "too few rounds"
    assert changed([1.0, 1.1, 1.2], [9.0, 9.1, 9.2]).verdict == "too few rounds"
    assert changed([1.0, 1.1, 1.2, 1.3], [9.0, 9.1, 9.2, 9.3]).verdict == "slower"
    assert compare.least_p(5, 5) == pytest.approx(0.0079, abs=1e-4)
    assert compare.least_p(1, 1) == 1


def test_nothing_that_became_something_is_slower() -> None:
    assert changed([0.0] * 5, near(3), IDLE).verdict == "slower"
    assert changed([0.0] * 5, near(3), IDLE).worse == math.inf
    assert changed(near(3), [0.0] * 5, IDLE).verdict == "faster"
    assert changed([0.0] * 5, [0.0] * 5, IDLE).verdict == "within noise"


def test_the_worst_stands_first_and_rows_of_one_run_apart() -> None:
    old = [
        row(SMALL, "a", "ours", near(1)), row(SMALL, "b", "rival", near(1)), row(SMALL, "gone", "rival", near(1)),
        row(SMALL, "broke", "ours", near(1)), row(SMALL, "never", "rival", [], note="not installed"),
    ]  # fmt: skip
    new = [
        row(SMALL, "a", "ours", near(0.5)), row(SMALL, "b", "rival", near(2)), row(SPARSE, "a", "ours", near(1)),
        row(SMALL, "broke", "ours", [], note="failed"), row(SMALL, "never", "rival", near(1)),
    ]  # fmt: skip
    found = compare.compare(outcome(old), outcome(new))
    assert [(change.new.subject, change.verdict) for change in found.changes] == [
        ("broke", "failed"), ("b", "slower"), ("a", "faster"),
    ]  # fmt: skip
    assert [each.subject for each in found.only_old] == ["gone"]
    assert [(each.line, each.subject) for each in found.only_new] == [(SPARSE, "a"), (SMALL, "never")]
    assert [change.new.subject for change in found.changes if change.fails] == ["broke"]


def compared(tmp_path: Path, old: Sequence[float], new: Sequence[float], role: Role, *options: str) -> Result:
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, rounds in zip(paths, (old, new), strict=True):
        files.write(outcome([row(SMALL, "<b>", role, rounds)]), path)
    return cli("compare", *paths, *options)


def test_compare_fails_only_if_asked_and_only_for_ours(tmp_path: Path) -> None:
    assert compared(tmp_path, near(1), near(1.2), "ours").exit_code == 0
    failed = compared(tmp_path, near(1), near(1.2), "ours", "--fail")
    assert failed.exit_code == 1
    assert "Fails: small: <b>: slower, 1.20 ×" in failed.output
    assert "0.008" in failed.output
    assert compared(tmp_path, near(1), near(1.2), "rival", "--fail").exit_code == 0
    assert compared(tmp_path, near(1), near(1), "ours", "--fail").exit_code == 0


def test_compare_does_not_pass_what_it_cannot_tell(tmp_path: Path) -> None:
    assert compared(tmp_path, [1.0], [9.0], "ours").exit_code == 0
    unable = compared(tmp_path, [1.0], [9.0], "ours", "--fail")
    assert unable.exit_code == 2
    assert "too few rounds" in unable.output


def test_compare_warns_if_the_runs_are_not_of_one_kind() -> None:
    old, new = outcome([]), outcome([], complete=False)
    new.form, new.environment = "quick", {**new.environment, "cpu": "another"}
    said = " ".join(compare.remarks(old, new, compare.compare(old, new)))
    assert "cpu" in said and "quick" in said and "incomplete" in said


# The command line.


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "nothing"], "'nothing' is not one of"),
        (["--rivals", "nobody"], "'nobody'"),
        (["--rivals", ","], "nothing named"),
        (["--quick", "--full"], "not both"),
        (["--json", "no/such/place.json"], "no directory"),
        (["--json", os.devnull], "no file"),
        (["--html", "no/such/place.html"], "no directory"),
        (["--png", "no/such/place"], "does not exist"),
        (["compare", "no-such.json", "no-such.json"], "No such file"),
        (["show", "no-such.json"], "No such file"),
    ],
)
def test_wrong_options_are_reported_before_anything_is_measured(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(self: Run) -> Run:
        raise AssertionError("the run began to measure")

    monkeypatch.setattr(Run, "__enter__", measured)
    done = cli(*arguments)
    assert done.exit_code in (1, 2)
    assert complaint in " ".join(done.output.split())


def test_unknown_rivals_are_answered_with_those_there_are() -> None:
    said = cli("--rivals", "nobody").output
    assert all(rival.family in said for rival in RIVALS)


def test_a_stored_result_is_shown_again(stored: Path, tmp_path: Path) -> None:
    done = cli("show", stored, "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert "Lost: streams" in done.output
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    tables_only = cli("show", stored, "--markdown")
    assert tables_only.exit_code == 0
    assert tables_only.output.startswith("| line |")


def test_a_tiny_run_from_end_to_end(tmp_path: Path) -> None:
    path, html = tmp_path / "result.json", tmp_path / "result.html"
    command = [sys.executable, "-m", "benchmark", "--quick", "--only", "small", "--rivals", "none"]
    command += ["--json", str(path), "--html", str(html)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "question 1 of 1" in done.stdout
    found = files.read(path)
    assert found.complete
    assert {each.subject for each in found.rows if each.role == "ours"} == {subject.name for subject in OURS}
    assert all(each.value for each in found.rows), [each.note for each in found.rows]
    assert json.loads(path.read_text())["format"] == files.FORMAT
    assert {"kernel", "python", "load before", "load after", "seconds"} <= found.environment.keys()
    assert "<svg" in html.read_text()


def test_the_study_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_study, "SIZES", (1_000,))
    path = tmp_path / "result.json"
    done = cli("study", "topics", "--quick", "--json", path)
    assert done.exit_code == 0, done.output
    found = files.read(path)
    assert {each.line.question for each in found.rows} == {topic_study.NAME}
    assert {"shmrpc.sync.Topic, raw", "TCP, epoll", "ring, robust mutex"} < {each.subject for each in found.rows}
    assert all(each.value for each in found.rows), [each.note for each in found.rows]
    assert cli("study", "--quick", "--full").exit_code == 2


@pytest.mark.parametrize(
    ("error", "code", "complete", "said"),
    [(KeyboardInterrupt(), 130, False, "INCOMPLETE"), (RuntimeError("oh"), 1, True, "question small: it broke")],
)
def test_rows_measured_before_an_interruption_or_an_error_are_kept(
    error: BaseException, code: int, complete: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: Run) -> list[Row]:
        run.measured.append(row(SMALL, "shmrpc, uvloop", "ours", near(1.4)))
        raise error

    monkeypatch.setitem(QUESTIONS, "small", dataclasses.replace(QUESTIONS["small"], ask=broken))
    path = tmp_path / "result.json"
    done = cli("--quick", "--only", "small", "--rivals", "none", "--json", path)
    assert done.exit_code == code
    assert said in done.output
    found = files.read(path)
    assert (found.complete, [each.subject for each in found.rows]) == (complete, ["shmrpc, uvloop"])


def test_the_environment_names_the_packages_of_those_who_take_part() -> None:
    known = environment.before(OURS, pinned=True)
    assert known["pinned"] is True
    assert {"msgspec", "uvloop"} <= set(known["packages"])
    assert dict(environment.lines(known))["pinned"] == "yes"
    assert QUICK.rounds == 1


def rows_of_tables(text: str) -> set[str]:
    return {line for line in text.splitlines() if line.startswith("|")}


def stored_tables() -> tuple[set[str], set[str]]:
    """Return the rows of the tables of the stored result, and the names of the lines that shmrpc lost."""
    (stored,) = (ROOT / "benchmark" / "results").glob("*.json")
    outcome = files.read(stored)
    assert (outcome.form, outcome.complete, outcome.absent) == ("usual", True, {})
    lost = {str(each.line) for each in standings(outcome.rows) if each.standing == "lost"}
    return rows_of_tables(markdown.markdown(outcome)), lost


def lines_of_page(name: str) -> set[str]:
    page = (ROOT / name).read_text()
    return rows_of_tables(page[page.index("| line |") :].partition("\n\n")[0])


def names(rows: set[str]) -> set[str]:
    return {line.split("|")[1].strip(" *") for line in rows}


def test_the_page_of_the_benchmark_shows_the_stored_result() -> None:
    known, lost = stored_tables()
    table = lines_of_page("benchmark/README.md")
    assert len(table) > 20
    assert table <= known
    assert lost <= names(table), "what we lose is shown"


def test_the_readme_shows_four_lines_of_it_one_of_them_lost() -> None:
    known, lost = stored_tables()
    table = lines_of_page("README.md")
    assert len(table) == 2 + 4
    assert table <= known
    assert len(names(table) & lost) == 1
