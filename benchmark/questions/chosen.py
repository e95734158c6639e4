"""Subjects that several questions choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from benchmark.run import Run
from benchmark.subjects import Subject

#: The family of the hand-written sockets, and that of ThreadPoolExecutor.
SOCKETS: Final = "asyncio_protocol"
THREAD_POOL: Final = "threads"


def our_uvloop(run: Run) -> list[Subject]:
    """Ours on uvloop, for questions for which one of ours is enough; empty if it does not take part."""
    return [subject for subject in run.subjects if subject.role == "ours" and subject.loop == "uvloop"]


def of_payloads(subjects: Iterable[Subject]) -> list[Subject]:
    """Return the same subjects, for large values, which a thread hands over by reference: that is not compared.

    Nothing is encoded or copied there, and the receiver can damage the caller's value.
    """
    return [
        dataclasses.replace(subject, role="context") if subject.family == THREAD_POOL else subject
        for subject in subjects
    ]
