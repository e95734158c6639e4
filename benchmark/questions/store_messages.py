"""Messages of 400,000 bytes one way through a store's inbox, beside InterProcessPyObjects, whose experiment it is.

The receiver takes each as bytes of its own and looks at its last one. The full form sends a thousand between two
answers, the usual one 200, the quick one 50.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import INBOX

NAME: Final = "store-messages"
TITLE: Final = "Messages in a store"

RIVAL: Final = "InterProcessPyObjects"
_SIZE: Final = 400_000
_PATIENCE: Final = 60.0


def ask(run: Run) -> list[Row]:
    """Ask ours and that rival."""
    subjects = [INBOX, *(subject for subject in run.able("bulk") if subject.name == RIVAL)]
    line = Line(NAME, "", "GB/s", "GB/s", higher_is_better=True)
    return run.line(line, subjects, "bulk", patience=_PATIENCE, size=_SIZE, messages=run.form.messages)
