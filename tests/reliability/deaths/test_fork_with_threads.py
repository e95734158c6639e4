"""A fork while other threads are in calls: the child connects anew and works, regardless of the locks they held."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.helpers.scale import scaled
from tests.helpers.server_process import ServerProcess
from tests.reliability import figures

TARGET = "tests.reliability.watched_service:service"

#: A program whose threads call without pause while the main thread forks; the child tries the old and a new client.
PARENT = """
    import gc, os, signal, sys, threading, warnings
    import shmrpc
    warnings.simplefilter("ignore", DeprecationWarning)  # From 3.12 on os.fork() with threads is frowned upon.
    import numpy as np

    client = shmrpc.sync.connect("tested.watched").__enter__()
    over = threading.Event()
    counts = [0] * 4
    array = np.arange(10_000, dtype=np.uint8)

    def work(i):
        while not over.is_set():
            assert client.add(i, counts[i]) == i + counts[i]
            if i == 0:
                assert (client.echo(array) == array).all()
            counts[i] += 1

    def child():
        signal.alarm(60)
        for call in (lambda: client.add(1, 2), lambda: client.empty(10), lambda: next(client.flood(1)),
                     lambda: client.notify("add", 1, 2)):
            try:
                call()
            except shmrpc.LocalProtocolError as error:
                assert f"does not work in its child {os.getpid()}" in str(error), error
            else:
                os._exit(3)
        with shmrpc.sync.connect("tested.watched", timeout=30) as own:
            assert own.add(1, 2) == 3
            assert (own.echo(array) == array).all()
        client.close()  # A copy: closing it must not close the parent's.

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(counts))]
    for thread in threads:
        thread.start()
    codes = []
    for n in range(int(sys.argv[1])):
        pid = os.fork()
        if pid == 0:
            try:
                child()
                gc.collect()
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(4)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    before = list(counts)
    while any(count < least + 10 for count, least in zip(counts, before)):  # All threads go on.
        pass
    over.set()
    for thread in threads:
        thread.join()
    assert client.add(1, 2) == 3
    client.close()
    print(codes.count(0), sum(counts), *filter(None, codes), flush=True)
"""


@pytest.mark.slow
def test_forked_children_connect_anew_and_the_parent_goes_on(server: ServerProcess) -> None:
    forks = scaled(15, 400)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(forks)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")
    well, calls, *others = map(int, done.stdout.split())
    assert (well, others) == (forks, [])
    figures.note("forks with threads in calls", forks=forks, calls_meanwhile=calls)


#: A program that forks while one thread receives for all, and another one sleeps.
HOLDING = """
    import gc, os, signal, threading
    import shmrpc

    client = shmrpc.sync.connect("tested.watched").__enter__()
    stream = client.flood(1)
    next(stream)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.wait_for("gate"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    while client._reconnector.session.drive():
        pass
    for end in (client.close, client.stop, stream.close):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            end()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    client.open_gate("gate")
    for thread in threads:
        thread.join()
    assert answers == ["gate"] * 2
    next(stream)
    stream.close()
    print(client.add(1, 2), flush=True)
    client.close()
"""


def test_threads_in_calls_do_not_block_a_close_in_the_child(server: ServerProcess) -> None:
    """The child closes its copy of the client, or a stream of it, as unwinding a ``with`` does."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(HOLDING)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n0\n0\n3\n", "")
