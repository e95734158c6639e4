"""A program ends while daemon threads wait for shared objects: they stay asleep, as at a lock of `threading`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

LOOP = "asyncio"

PRELUDE = """
    import asyncio, logging, threading, time
    import shmrpc
    logging.getLogger("shmrpc").setLevel("ERROR")  # It warns of the lost item.
    queue, full = shmrpc.sync.queue("exit_q", 1), shmrpc.sync.queue("exit_full", 1)
    full.put(1)
    lock, gate, event = shmrpc.sync.Lock("exit_l"), shmrpc.sync.Semaphore("exit_s"), shmrpc.sync.Event("exit_e")
    ready = shmrpc.sync.Signal("exit_i")
    lock.acquire()
    gate.acquire()
    def in_a_loop(open, name, wait):
        async def main():
            await wait(open(name))
        return lambda: asyncio.run(main())
"""
#: Waits of a daemon thread of the program.
WAITS = {
    "get": "queue.get",
    "get-with-a-timeout": "lambda: queue.get(60)",
    "claim": "queue.claim",
    "claims": "lambda: list(queue.claims())",
    "put": "lambda: full.put(2)",
    "join": "full.join",
    "lock": "lock.acquire",
    "with-lock": "lock.__enter__",
    "permit": "gate.acquire",
    "signal": "ready.wait",
    "event": "event.wait",
    "loop-get": "in_a_loop(lambda name: shmrpc.queue(name, 1), 'exit_q', lambda q: q.get())",
    "loop-join": "in_a_loop(lambda name: shmrpc.queue(name, 1), 'exit_full', lambda q: q.join())",
    "loop-lock": "in_a_loop(shmrpc.Lock, 'exit_l', lambda lock: lock.acquire())",
    "loop-signal": "in_a_loop(shmrpc.Signal, 'exit_i', lambda ready: ready.wait())",
    "loop-event": "in_a_loop(shmrpc.Event, 'exit_e', lambda event: event.wait())",
}


def run(program: str) -> subprocess.CompletedProcess[str]:
    source = textwrap.dedent(PRELUDE) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, env=os.environ)


@pytest.mark.slow
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_waiting_daemon_thread_stays_asleep_at_exit(wait: str) -> None:
    done = run(f"""
        thread = threading.Thread(target={wait}, daemon=True)
        thread.start()
        time.sleep(0.1)
        assert thread.is_alive()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_operation_after_the_exit_handler_raises_without_waiting() -> None:
    """An exit handler that was registered earlier runs after this process has left its objects."""
    done = run("""
        import atexit, sys
        def late():
            try:
                queue.get()
            except shmrpc.LocalProtocolError as error:
                print(error)
        atexit.unregister(shmrpc._core.SharedObject.leave_all)
        atexit.register(late)
        atexit.register(shmrpc._core.SharedObject.leave_all)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "queue 'exit_q' is closed\n", "")
