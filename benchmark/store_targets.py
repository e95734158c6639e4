"""The targets of stores."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from benchmark.questions import (
    store_dict,
    store_field,
    store_memory,
    store_messages,
    store_players,
    store_transaction,
)
from benchmark.subjects import INBOX, STORES
from benchmark.verdict import RowIndex, Target

_STRUCT, _DATACLASS, _DICT, _ = (subject.name for subject in STORES)
_FIELDS: Final = (_STRUCT, _DATACLASS)
_RIVAL: Final = "InterProcessPyObjects"
#: The kind of our fields, with the similar one of the rival.
_LIKE: Final = {_STRUCT: f"{_RIVAL} list", _DATACLASS: f"{_RIVAL} dataclass"}


def targets() -> Iterator[Target]:
    """Yield those for each question of stores."""
    for ours in _FIELDS:
        yield Target(
            f"increments of fields by one writer, {ours}",
            f"≥ 2,000,000/s, ≥ 5 × {_RIVAL}",
            functools.partial(_increments, ours=ours),
        )
        for writers in store_field.WRITERS:
            yield Target(
                f"add by {writers} writers on one field, {ours}",
                "≥ 2,000,000/s in total, none lost",
                functools.partial(_added, ours=ours, writers=writers),
            )
        yield Target(f"reads of a field, {ours}", "≥ 5,000,000/s", functools.partial(_read, ours=ours))
        yield Target(
            f"reads of a field beside a writer, {ours}", "≥ 0.8 × alone", functools.partial(_beside, ours=ours)
        )
        yield Target(f"a transaction of ten changes, {ours}", "≤ 2 µs", functools.partial(_transaction, ours=ours))
    for case, least in ((store_dict.GET, 3e6), (store_dict.SET, 1.5e6), (store_dict.INCREMENT, 1e6)):
        judge = functools.partial(_dict, case=case, least=least)
        yield Target(f"a dict of text to int, {case}", f"≥ {least:,.0f}/s, ≥ 4 × UltraDict", judge)
    for kind in (store_memory.LIST, store_memory.DICT):
        yield Target(f"memory of a million ints, {kind}", "≤ 1.5 × Python's", functools.partial(_memory, kind=kind))
    yield Target("messages of 400,000 B through an inbox", f"≥ 2 × {_RIVAL}", _messages)


def _increments(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, rival = (found.value(store_players.NAME, store_players.case(1), name) for name in (ours, _LIKE[ours]))
    return f"{own:,.0f}/s, {own / rival:.1f} ×", own >= 2e6 and own >= 5 * rival


def _added(found: RowIndex, ours: str, writers: int) -> tuple[str, bool]:
    own = found.value(store_field.NAME, store_field.added(writers), ours)
    return f"{own:,.0f}/s", own >= 2e6


def _read(found: RowIndex, ours: str) -> tuple[str, bool]:
    own = found.value(store_field.NAME, store_field.ALONE, ours)
    return f"{own:,.0f}/s", own >= 5e6


def _beside(found: RowIndex, ours: str) -> tuple[str, bool]:
    alone, beside = (found.value(store_field.NAME, case, ours) for case in (store_field.ALONE, store_field.BESIDE))
    return f"{beside:,.0f}/s, {beside / alone:.2f} ×", beside >= 0.8 * alone


def _transaction(found: RowIndex, ours: str) -> tuple[str, bool]:
    own = found.value(store_transaction.NAME, "", ours)
    return f"{own:.1f} µs", own <= 2


def _dict(found: RowIndex, case: str, least: float) -> tuple[str, bool]:
    own, rival = (found.value(store_dict.NAME, case, name) for name in (_DICT, "UltraDict"))
    return f"{own:,.0f}/s, {own / rival:.1f} ×", own >= least and own >= 4 * rival


def _memory(found: RowIndex, kind: str) -> tuple[str, bool]:
    own, python = (found.value(store_memory.NAME, kind, name) for name in ("shmrpc store", store_memory.PLAIN))
    return f"{own:.1f} MB against {python:.1f}, {own / python:.2f} ×", own <= 1.5 * python


def _messages(found: RowIndex) -> tuple[str, bool]:
    own, rival = (found.value(store_messages.NAME, "", name) for name in (INBOX.name, _RIVAL))
    return f"{own:.2f} GB/s, {own / rival:.2f} ×", own >= 2 * rival
