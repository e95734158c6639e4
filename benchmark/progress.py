"""Says how far a run is: a bar in place on a terminal, a line for each question elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Shown:
    """Progress that is shown while the context is entered."""

    def __init__(self, console: Console, questions: int) -> None:
        self._console, self._questions, self._begun = console, questions, 0
        self._started = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            # The step is a subject's name, and not markup.
            columns = (MofNCompleteColumn(), BarColumn(20), TimeElapsedColumn())
            step = TextColumn("{task.description}", markup=False)
            self._bar = Progress(*columns, step, console=console, transient=True)
            self._task = self._bar.add_task("starting", total=questions)

    def __enter__(self) -> Shown:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def question(self, title: str) -> None:
        """Another question begins."""
        self._begun += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self._begun - 1, description=title)
            return
        elapsed = time.monotonic() - self._started
        text = f"{elapsed:6.0f} s  question {self._begun} of {self._questions}: {title}"
        self._console.print(text, markup=False, highlight=False)

    def step(self, text: str) -> None:
        """Show a step on a terminal; there are thousands."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
