"""Clients and a server do what a model in plain Python says, whatever is done to them and in whatever order."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import uvloop
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from tests.helpers.scale import LONG, scaled
from tests.reliability import figures
from tests.reliability.deaths.model_driver import Nursery
from tests.reliability.deaths.model_machine import Machine

#: The short form is the same each time; the long one is another each time, or that of a run that is to be seen again.
SEED = int(os.environ.get("SHMRPC_SEED", random.randrange(1 << 32) if LONG else 1))

SETTINGS = hypothesis.settings(
    max_examples=scaled(12, 110),
    stateful_step_count=scaled(40, 60),
    deadline=None,
    database=None,
    # A shorter way to a difference may take minutes to find: only for who asks.
    phases=[Phase.generate, *([Phase.shrink] if os.environ.get("SHMRPC_SHRINK") else [])],
    print_blob=True,
    # Other processes take part, and a step waits for them.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as nursery:
        yield nursery


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_clients_and_a_server_do_what_the_model_says(loop: str, nursery: Nursery) -> None:
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop

    class Here(Machine):
        pass

    Here.nursery, Here.loop_factory, Here.server_loop = nursery, staticmethod(factory), loop
    before = sum(Machine.ran.values())
    figures.note("model", seed=SEED)
    run_state_machine_as_test(hypothesis.seed(SEED + (loop == "uvloop"))(Here), settings=SETTINGS)
    figures.note("model", **{f"steps on {loop}": sum(Machine.ran.values()) - before, "differences": 0})
    figures.note("model, steps", **dict(Machine.ran))
