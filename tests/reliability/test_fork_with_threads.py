"""A fork while other threads are in calls: whatever lock they held, the child connects anew and works."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from tests.reliability import figures
from tests.reliability.scale import scaled
from tests.support import ServerProcess

TARGET = "tests.reliability.watched:service"

#: Threads call without pause while the main thread forks; the child tries the old client, and a new one.
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
                assert f"does not work in process {os.getpid()}" in str(error), error
            else:
                os._exit(3)
        with shmrpc.sync.connect("tested.watched", timeout=30) as own:
            assert own.add(1, 2) == 3
            assert (own.echo(array) == array).all()
        client.close()  # Ours is a copy: this must not end the parent's.

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
    print(codes.count(0), sum(counts), flush=True)
"""


def test_children_work_and_the_parent_is_unharmed(server: ServerProcess) -> None:
    forks = scaled(25, 400)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(forks)],
        capture_output=True,
        text=True,
        timeout=scaled(100, 300),
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")
    well, calls = map(int, done.stdout.split())
    assert well == forks
    figures.note("forks with threads in calls", forks=forks, calls_meanwhile=calls)
