"""How far a map is: told to a function, or shown as a bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

#: Is told how many tasks have ended, and of how many; None: nobody knows. A text is what a bar shows beside itself.
OnProgress = Callable[[int, int | None], object] | str
#: Takes how many tasks have ended.
Report = Callable[[int], object]


@contextlib.contextmanager
def reporting(on_progress: OnProgress, iterables: Iterable[Iterable[Any]]) -> Iterator[Report]:
    """What takes how many tasks of these iterables have ended. At the end, all of them have.

    Raises ImportError for a text if rich is not installed.
    """
    total, ended = _length(iterables), 0
    with contextlib.ExitStack() as stack:
        tell = stack.enter_context(_bar(on_progress)) if isinstance(on_progress, str) else on_progress

        def report(count: int) -> None:
            nonlocal ended
            if count != ended:
                ended = count
                tell(count, total)

        tell(0, total)
        yield report
        if ended != total:
            tell(ended, ended)


def _length(iterables: Iterable[Iterable[Any]]) -> int | None:
    """How many tasks there are at most, by the iterables that have a length."""
    return min((len(each) for each in iterables if isinstance(each, Sized)), default=None)


@contextlib.contextmanager
def _bar(text: str) -> Iterator[Callable[[int, int | None], None]]:
    try:
        from rich import progress  # Few programs show one.
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
        yield lambda count, total: bar.update(task, completed=count, total=total)
