"""The outcome of a run, and the file for it."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmark.rows import Line, Role, Row
from benchmark.verdict import Verdict

#: Which files this version writes and reads.
FORMAT: Final = 1
#: The most points of a stored distribution: a plot shows no more, and a run has hundreds of rows.
_STEPS: Final = 150


class Unreadable(ValueError):
    """A file is no result that can be read; says why."""


@dataclasses.dataclass
class Outcome:
    """All that a run found."""

    #: The name of the form.
    form: str
    environment: dict[str, Any]
    rows: list[Row]
    targets: list[Verdict]
    #: Subjects that should have taken part and did not, with the reason.
    absent: dict[str, str]
    #: False: it was ended before its time.
    complete: bool = True


class _Line(msgspec.Struct, omit_defaults=True):
    question: str
    case: str = ""
    lead: str = "p50"
    unit: str = "µs"
    higher_is_better: bool = False


class _Row(msgspec.Struct, omit_defaults=True):
    line: _Line
    subject: str
    role: Role
    rounds: list[float] = []
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    longest: float | None = None
    calls_per_second: float | None = None
    cpu: float | None = None
    extra: dict[str, float] = {}
    steps: list[tuple[float, float]] = []
    note: str = ""


class _File(msgspec.Struct):
    form: str
    environment: dict[str, Any]
    rows: list[_Row]
    targets: list[Verdict]
    absent: dict[str, str]
    complete: bool = True


class _Head(msgspec.Struct):
    format: int


def write(outcome: Outcome, path: Path) -> None:
    """Write the whole file or none: until then readers find the old one. Each row is a line of its own."""
    head = {
        "format": FORMAT,
        "form": outcome.form,
        "complete": outcome.complete,
        "environment": outcome.environment,
        "absent": outcome.absent,
    }
    parts = [f"{_text(name)}:{_text(value)}" for name, value in head.items()]
    parts += [f'"targets":[\n{_lines(outcome.targets)}\n]', f'"rows":[\n{_lines(map(_stored, outcome.rows))}\n]']
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path) -> Outcome:
    """Raise Unreadable."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error
    if not data.strip():
        raise Unreadable(f"{path}: the file is empty")
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}: not a result of this benchmark ({error})") from error
    if head.format != FORMAT:
        raise Unreadable(f"{path}: a result of format {head.format}, and this version reads format {FORMAT}")
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}: a damaged result ({error})") from error
    rows = list(map(_loaded, found.rows))
    return Outcome(found.form, found.environment, rows, found.targets, found.absent, found.complete)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _lines(values: Iterable[Any]) -> str:
    return ",\n".join(map(_text, values))


def _stored(row: Row) -> _Row:
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(Row)}
    for name in ("p50", "p90", "p99", "p999", "longest", "calls_per_second", "cpu"):
        fields[name] = None if fields[name] is None else _six(fields[name])
    # JSON has no word for what is not finite.
    fields["rounds"] = [_six(each) for each in row.rounds if math.isfinite(each)]
    fields["extra"] = {name: _six(value) for name, value in row.extra.items() if math.isfinite(value)}
    fields["steps"] = [(_six(time), _six(share)) for time, share in thinned(row.steps)]
    fields["line"] = _Line(**dataclasses.asdict(row.line))
    return _Row(**fields)


def _loaded(stored: _Row) -> Row:
    fields = {field.name: getattr(stored, field.name) for field in dataclasses.fields(Row)}
    fields["line"] = Line(**msgspec.structs.asdict(stored.line))
    return Row(**fields)


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def thinned(steps: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most 150 of the steps, as far from each other as the eye sees it on the plot; the first and the last stay."""
    if len(steps) <= _STEPS:
        return steps
    # The last share is 1, which lies infinitely far to the right: it stands a digit behind the one before it.
    behind = (1 - steps[-2][1]) / 10 or 1e-9
    places = [(-math.log(max(behind, 1 - share)), math.log(max(time, 1e-3))) for time, share in steps]
    width, height = (max(1e-9, max(axis) - min(axis)) for axis in zip(*places, strict=True))
    kept, last = [steps[0]], places[0]
    for step, place in zip(steps[1:-1], places[1:-1], strict=True):
        # The whole way is 2 at most, one along each axis.
        if (place[0] - last[0]) / width + abs(place[1] - last[1]) / height >= 2 / (_STEPS - 2):
            kept.append(step)
            last = place
    return [*kept, steps[-1]]
