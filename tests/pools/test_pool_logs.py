"""Output and log records of workers arrive in the process of the pool."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import shmrpc
from tests.helpers import pool_tasks as tasks

LOOP = "either"
PATIENCE = 60


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def pool(caplog: pytest.LogCaptureFixture) -> AsyncIterator[shmrpc.Pool]:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "spoken.closely")
    async with shmrpc.pool(1) as made:
        yield made


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord:
    """Wait for the record with this text, and return it."""
    await wait_until(lambda: text in caplog.messages)
    return next(record for record in caplog.records if record.getMessage() == text)


async def test_records_are_those_of_the_program_s_levels(pool: shmrpc.Pool, caplog: pytest.LogCaptureFixture) -> None:
    await pool.run(tasks.log, "spoken.loudly", logging.DEBUG, "a detail")
    await pool.run(tasks.log, "spoken.closely", logging.DEBUG, "one that is wanted")
    await pool.run(tasks.log, "spoken.loudly", logging.INFO, "news")
    record = await logged(caplog, "news, of 4")
    assert (record.name, record.levelno, record.process) == ("spoken.loudly", logging.INFO, await pool.run(tasks.pid))
    assert record.process != os.getpid() and record.filename == "pool_tasks.py"
    assert "one that is wanted, of 18" in caplog.messages
    assert not [text for text in caplog.messages if "detail" in text]


async def test_a_filter_of_the_program_sees_them(pool: shmrpc.Pool, caplog: pytest.LogCaptureFixture) -> None:
    spoken = logging.getLogger("spoken.quietly")
    spoken.setLevel(logging.ERROR)  # Since the worker began.
    try:
        await pool.run(tasks.log, "spoken.quietly", logging.INFO, "unheard")
        await pool.run(tasks.log, "spoken.quietly", logging.ERROR, "heard")
        await logged(caplog, "heard, of 5")
        assert "unheard, of 7" not in caplog.messages
    finally:
        spoken.setLevel(logging.NOTSET)


async def test_an_exception_comes_with_its_traceback(pool: shmrpc.Pool, caplog: pytest.LogCaptureFixture) -> None:
    await pool.run(tasks.log, "spoken", logging.ERROR, "a reason", "exception")
    record = await logged(caplog, "it went wrong")
    assert "ValueError: a reason" in logging.Formatter().format(record)


async def test_fields_of_a_record_that_cannot_be_sent_are_left_out(
    pool: shmrpc.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await pool.run(tasks.log, "spoken", logging.INFO, "with more", "extra")
    record = await logged(caplog, "with more, of 9")
    assert record.__dict__["answer"] == 42 and "frame" not in record.__dict__


async def test_a_very_long_text_is_cut_off(pool: shmrpc.Pool, caplog: pytest.LogCaptureFixture) -> None:
    await pool.run(tasks.log, "spoken", logging.INFO, "x" * 1_000_000)
    await wait_until(lambda: any(text.endswith("(1,000,012 characters)") for text in caplog.messages))


async def test_each_of_many_records_arrives_once(pool: shmrpc.Pool, caplog: pytest.LogCaptureFixture) -> None:
    count = 3000
    texts = [str(number) for number in range(count)]
    async for _ in pool.map(tasks.log, ["spoken"] * count, [logging.INFO] * count, texts):
        pass
    wanted = [f"{text}, of {len(text)}" for text in texts]
    await wait_until(lambda: len(caplog.records) >= count)
    assert sorted(record.getMessage() for record in caplog.records if record.name == "spoken") == sorted(wanted)


async def test_output_of_a_task_arrives_before_its_worker_dies(
    pool: shmrpc.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(shmrpc.WorkerDied):
        await pool.run(tasks.log, "spoken", logging.WARNING, "at last", "die")
    await logged(caplog, "at last, of 7")
    await pool.run(tasks.log, "spoken", logging.WARNING, "by the next one")
    await logged(caplog, "by the next one, of 15")


async def test_logging_of_the_workers_own_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "log"
    async with shmrpc.pool(1, initializer=tasks.configure, initargs=[str(path)]) as pool:
        await pool.run(tasks.log, "spoken", logging.DEBUG, "into the file")
        assert "into the file, of 13" in path.read_text()
    assert "into the file, of 13" not in caplog.messages


PROGRAM = """
import logging
import shmrpc

print("the program begins")

def task(number):
    print(f"task {number}")
    logging.getLogger("own").info("logged %d", number)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    with shmrpc.sync.pool(2) as pool:
        list(pool.map(task, range(3)))
        print("still open", flush=True)
        input()
"""


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_a_program_s_tasks_print_and_log_at_once_through_pipes(options: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    pipe = subprocess.PIPE
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, *options, str(path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=variables) as program:
        assert program.stdout is not None
        said: list[str] = []
        while "still open\n" not in said or sum(line.startswith("task") for line in said) < 3:
            said.append(program.stdout.readline())
            assert said[-1], said
        rest, errors = program.communicate("\n", timeout=PATIENCE)
    said += rest.splitlines(keepends=True)
    assert sorted(line for line in said if line.startswith("task")) == [f"task {number}\n" for number in range(3)]
    # Once by itself, and once as its workers' fork server imports it.
    assert said.count("the program begins\n") == 2, said
    assert sorted(errors.splitlines()) == [f"own: logged {number}" for number in range(3)]
