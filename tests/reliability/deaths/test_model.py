"""Clients and a server behave as a model in plain Python predicts, for any steps in any order."""

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

#: The short form uses the same seed each time; the long one another one, or the seed of a run to repeat.
SEED = int(os.environ.get("SHMRPC_SEED", random.randrange(1 << 32) if LONG else 1))

SETTINGS = hypothesis.settings(
    max_examples=scaled(12, 110),
    stateful_step_count=scaled(40, 60),
    deadline=None,
    database=None,
    # Shrinking a difference may take minutes: only on request.
    phases=[Phase.generate, *([Phase.shrink] if os.environ.get("SHMRPC_SHRINK") else [])],
    print_blob=True,
    # A step waits for other processes.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as nursery:
        yield nursery


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_clients_and_a_server_match_the_model(loop: str, nursery: Nursery) -> None:
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop

    class ConfiguredMachine(Machine):
        pass

    ConfiguredMachine.nursery, ConfiguredMachine.loop_factory, ConfiguredMachine.server_loop = (
        nursery,
        staticmethod(factory),
        loop,
    )
    before = sum(Machine.ran.values())
    figures.note("model", seed=SEED)
    run_state_machine_as_test(hypothesis.seed(SEED + (loop == "uvloop"))(ConfiguredMachine), settings=SETTINGS)
    figures.note("model", **{f"steps on {loop}": sum(Machine.ran.values()) - before, "differences": 0})
    figures.note("model, steps", **dict(Machine.ran))
