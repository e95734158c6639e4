"""Progress of a map, reported to a function or shown as a bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

#: Called with the number of tasks that have ended, and their total, None if unknown; or the text beside a progress bar.
OnProgress = Callable[[int, int | None], object] | str
#: Called with the total number of tasks that have ended.
ReportEnded = Callable[[int], object]


@contextlib.contextmanager
def report_progress(on_progress: OnProgress, iterables: Iterable[Iterable[Any]]) -> Iterator[ReportEnded]:
    """Report the progress of a map of these iterables.

    Yield a function to call with the number of tasks that have ended. ``on_progress`` is called with 0 at the start,
    and whenever the number has changed; at the end of a block without an exception the last number becomes the total.
    Raises ImportError for a text if rich is not installed.
    """
    total, last = _shortest_length(iterables), 0
    with contextlib.ExitStack() as stack:
        notify = stack.enter_context(_progress_bar(on_progress)) if isinstance(on_progress, str) else on_progress

        def report(ended: int) -> None:
            nonlocal last
            if ended != last:
                last = ended
                notify(ended, total)

        notify(0, total)
        yield report
        if last != total:
            notify(last, last)


def _shortest_length(iterables: Iterable[Iterable[Any]]) -> int | None:
    """Return the shortest length of the iterables that have one; return None if none has."""
    return min((len(each) for each in iterables if isinstance(each, Sized)), default=None)


@contextlib.contextmanager
def _progress_bar(text: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar; yield the function that updates it. Raises ImportError if rich is not installed."""
    try:
        from rich import progress  # Few programs show a bar.
    except ImportError as error:
        raise ImportError(f"on_progress={text!r} shows a bar by rich: pip install rich, or pass a function") from error
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with progress.Progress(*columns) as bar:
        task = bar.add_task(text, total=None)
        yield lambda ended, total: bar.update(task, completed=ended, total=total)
