"""What one turn of one subject gives."""

from __future__ import annotations

import dataclasses

from benchmark.durations import Durations


@dataclasses.dataclass
class Result:
    """What a load found in its turn."""

    #: How many calls, items or messages there were in ``seconds``.
    calls: int
    seconds: float
    #: How long each took, where that was looked at.
    times: Durations | None = None
    #: Seconds of CPU that all processes of the subject used meanwhile; added by the process that asked for the load.
    cpu: float = 0.0
    #: What else was found, by name.
    extra: dict[str, float] = dataclasses.field(default_factory=dict)
