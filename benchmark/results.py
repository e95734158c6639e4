"""The result of one turn of one subject."""

from __future__ import annotations

import dataclasses

from benchmark.durations import Durations


@dataclasses.dataclass
class Result:
    """The result of a load in its turn."""

    #: The number of calls, items or messages in ``seconds``.
    calls: int
    seconds: float
    #: The duration of each, where the load measures it.
    times: Durations | None = None
    #: Seconds of CPU that all processes of the subject used meanwhile; added by the process that asked for the load.
    cpu: float = 0.0
    #: Other figures, by name.
    extra: dict[str, float] = dataclasses.field(default_factory=dict)
