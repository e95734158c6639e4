"""A client in threads survives interruptions between any two of its instructions.

An interruption is an exception, as a signal handler raises it, or a call on the same client, as such a handler or a
``__del__`` makes it. After each the client works, and no other thread has lost an item or got it twice.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmrpc
from shmrpc.errors import ConnectionLost
from tests.helpers.interruptions import NAME, Interrupted, Steps
from tests.helpers.scale import LONG, scaled
from tests.helpers.server_process import ServerProcess, eventually
from tests.helpers.time_bound import bounded
from tests.helpers.traces import traces
from tests.reliability import figures

TARGET = "tests.helpers.interruptions:service"
PATIENCE = 30.0

Client = shmrpc.sync.Client


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded(600 if LONG else 90):
        yield


@pytest.fixture(autouse=True)
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Collect exceptions in destructors, which Python cannot raise."""
    dropped: list[None] = []

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is Interrupted:
            dropped.append(None)
        else:
            before(unraisable)

    before = sys.unraisablehook
    monkeypatch.setattr(sys, "unraisablehook", hook)
    return dropped


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Disable the collector, so that objects are freed at once and each round has the same instructions."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def in_a_thread(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a thread of its own.

    An exception between the last two instructions of an ``except`` clause leaves the handled exception to the thread as
    its current one, permanently. Signals do not arrive there.
    """

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        errors: list[BaseException] = []

        def body() -> None:
            try:
                test(**arguments)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    return run


def _leave_early(client: Client) -> int:
    item: int
    for item in client.count(1000):
        if item == 2:
            return item
    return -1


def _close_early(client: Client) -> int:
    stream = client.count(1000)
    first: int = next(stream)
    stream.close()
    return first


def _batch(client: Client) -> list[int]:
    with client.batch() as batch:
        futures = [batch.add(1, 2), batch.later(4)]
    return [future.result(0) for future in futures]


def _short_batches(client: Client) -> None:
    for _ in range(4):
        with client.batch() as batch:
            batch.add(1, 2)


def _notify(client: Client) -> None:
    client.notify("add", 1, 2)


def _stop(client: Client) -> None:
    client.stop()
    client.resume()


def _leave_map(client: Client) -> int:
    results = client.map("later", range(8), chunk=2)
    first: int = next(results)
    results.close()
    return first


def _connect(client: Client) -> int:
    with shmrpc.sync.connect(NAME, timeout=PATIENCE) as other:
        result: int = other.add(1, 2)
        return result


@contextlib.contextmanager
def _intercepted(call: shmrpc.Call) -> Iterator[None]:
    call.metadata["asked"] = "so"
    yield


def _reconnect(client: Client) -> int:
    """Call on another client, whose connection has ended."""
    other = shmrpc.sync.connect(NAME, timeout=PATIENCE, reconnect=True, interceptors=[_intercepted])
    with other:
        session = other._reconnector.session
        assert session is not None
        session.close(ConnectionLost("as the test wants it"))
        result: int = other.later(3)
        return result


#: Operations by name, and their results.
OPERATIONS: dict[str, tuple[Callable[[Client], Any], Any]] = {
    "call": (lambda client: client.add(1, 2), 3),
    "call that waits": (lambda client: client.later(5), 5),
    "keywords": (lambda client: client.add(a=1, b=2), 3),
    "deadline": (lambda client: client.with_options(timeout=PATIENCE).later(5), 5),
    "options": (lambda client: client.with_options(metadata={"a": "b"}, reply_metadata={}).add(1, 2), 3),
    "stream": (lambda client: list(client.count(6)), list(range(6))),
    "slow stream": (lambda client: list(client.count(3, 0.001)), list(range(3))),
    "stream that is left": (_leave_early, 2),
    "stream that is closed": (_close_early, 0),
    "upload": (lambda client: client.total(iter(range(5))), 10),
    "both": (lambda client: list(client.doubled(range(3))), [0, 2, 4]),
    "batch": (_batch, [3, 4]),
    "map": (lambda client: list(client.map("add", range(4), range(4), chunk=2)), [0, 2, 4, 6]),
    "map that is left": (_leave_map, 0),
    "notify": (_notify, None),
    "describe": (lambda client: client.describe().service, NAME),
    "ready": (lambda client: client.wait_for_ready(), None),
    "stop": (_stop, None),
    "connect": (_connect, 3),
    "reconnect": (_reconnect, 3),
}

#: Slow operations, which the short form interrupts at fewer places.
_LONG_ONES = {"connect", "reconnect"}


#: Numbers of raised exceptions, by test.
_tried: list[int] = []


class Others:
    """Threads that call and stream on the same client at the same time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._over = threading.Event()
        #: The number of items and answers.
        self.read = 0
        self.wrong: list[object] = []
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._stream, self._call)]

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self._over.is_set():
                with contextlib.suppress(shmrpc.CallStopped):
                    work()
        except BaseException as error:
            self.wrong.append(error)

    def _stream(self) -> None:
        for expected, item in zip(range(51), itertools.chain(self._client.count(50), ["end"]), strict=False):
            if item != (expected if expected < 50 else "end"):
                self.wrong.append(("item", expected, item))
            self.read += 1

    def _call(self) -> None:
        number = self.read
        if self._client.later(number, 0.0005) != number:
            self.wrong.append(("answer", number))

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads), "a thread hangs"
        assert self.wrong == []


@pytest.fixture
def client(shared_server: ServerProcess) -> Iterator[Client]:
    with shmrpc.sync.connect(NAME, timeout=PATIENCE) as client:
        assert client.add(1, 2) == 3
        yield client


def steps_of(operation: Callable[[Client], Any], client: Client) -> int:
    """Return the number of instructions of an operation."""
    operation(client)
    steps = Steps()
    with steps.followed():
        operation(client)
    return steps.count


def places(count: int, most: int) -> Iterator[int]:
    """Return the instructions to interrupt: all, or a random selection of that size."""
    if LONG or count <= most:
        return iter(range(1, count + 1))
    return iter(sorted(random.sample(range(1, count + 1), most)))


def raise_interrupted() -> None:
    raise Interrupted


def check(client: Client, *, alone: bool, place: str) -> None:
    """Check that the client works, and that no call is left."""
    client.resume()
    assert client.add(20, 3) == 23, place
    if alone:
        session = client._reconnector.session
        assert session is not None
        assert len(session.calls) == 0, place


def check_the_rest(client: Client, before: tuple[int, int]) -> None:
    """Check that no handler is left at the server, and no descriptor here."""
    assert eventually(lambda: client.under_way() == 0, PATIENCE), "a handler was not cancelled"
    assert eventually(lambda: gc.collect() >= 0 and traces() == before, PATIENCE), "a descriptor is left, or memory"


@pytest.mark.slow
@pytest.mark.parametrize("crowded", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize("name", OPERATIONS)
@in_a_thread
def test_an_exception_at_any_instruction_ends_only_the_operation(
    client: Client, dropped: list[None], name: str, crowded: bool
) -> None:
    operation, expected = OPERATIONS[name]
    most = (6 if crowded else 20) if name in _LONG_ONES else (20 if crowded else 50)
    before = traces()
    tried = 0
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore", ResourceWarning)  # Objects that were interrupted during their close.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # Before their first step.
        count = steps_of(operation, client)
        others = stack.enter_context(Others(client)) if crowded else None
        for at in places(count, most):
            steps = Steps(at, raise_interrupted)
            try:
                with steps.followed():
                    result = operation(client)
            except Interrupted as error:
                error.__traceback__ = None
                tried += 1
            else:
                assert result == expected, steps.place
                assert not steps.place or dropped, f"an exception was lost: {steps.place}"
            dropped.clear()
            check(client, alone=not crowded, place=steps.place)
            assert others is None or not others.wrong, steps.place
        gc.collect()
    check_the_rest(client, before)
    _tried.append(tried)
    figures.note("exceptions at any instruction of an operation", raised=sum(_tried))


@pytest.mark.slow
@pytest.mark.parametrize("crowded", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "stop"])
@in_a_thread
def test_a_call_at_any_instruction_of_an_operation_of_the_same_thread_works(
    client: Client, name: str, crowded: bool
) -> None:
    """A handler or a __del__ makes calls, waits, reads a stream, and is itself interrupted by a call."""
    operation, expected = OPERATIONS[name]
    most = 5 if name in _LONG_ONES else (10 if crowded else 25)
    before = traces()

    def call() -> None:
        assert client.add(7, 8) == 15
        assert client.later(9, 0.0) == 9
        assert list(client.count(3)) == [0, 1, 2]
        inner = Steps(30, lambda: client.with_options(timeout=PATIENCE).later(1, 0.0))
        with inner.followed():
            assert client.total(range(4)) == 6

    with contextlib.ExitStack() as stack:
        count = steps_of(operation, client)
        if crowded:
            stack.enter_context(Others(client))
        for at in places(count, most):
            steps = Steps(at, call)
            with steps.followed():
                result = operation(client)
            assert result == expected, steps.place
            check(client, alone=not crowded, place=steps.place)
    check_the_rest(client, before)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in _LONG_ONES])
@in_a_thread
def test_a_second_exception_during_the_handling_of_the_first_has_no_further_effect(client: Client, name: str) -> None:
    operation, expected = OPERATIONS[name]
    before = traces()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")
        count = steps_of(operation, client)
        for number, at in enumerate(places(count, 25)):
            second = Second(1 + number % 12)
            steps = Steps(at, second.begin)
            try:
                with second.ends(), steps.followed():
                    result = operation(client)
            except Interrupted as error:
                error.__traceback__ = error.__context__ = None
            else:
                assert result == expected, steps.place
            check(client, alone=True, place=f"{steps.place}, then {second.count} of {second.at}")
        gc.collect()
    check_the_rest(client, before)


class Second:
    """A second exception, after that many calls and returns of functions, native functions included."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def begin(self) -> None:
        """Raise the first exception."""
        sys.setprofile(self._step)
        raise Interrupted

    def _step(self, frame: Any, event: str, argument: Any) -> None:
        if "shmrpc" not in frame.f_code.co_filename or frame.f_code.co_name == "__del__":
            return
        self.count += 1
        if self.count == self.at:
            raise Interrupted

    @contextlib.contextmanager
    def ends(self) -> Iterator[None]:
        """Stop raising after the block."""
        try:
            yield
        finally:
            sys.setprofile(None)


def signalled(
    client: Client,
    operations: list[tuple[Callable[[Client], Any], Any]],
    rounds: int,
    longest: float,
    others: Others | None = None,
) -> int:
    """Run operations during real signals, each after at most ``longest`` seconds; return how many handlers raised."""
    raised = 0
    chosen = random.Random(7)

    def handle(number: int, frame: object) -> None:
        if armed:
            raise Interrupted

    armed = False
    before = signal.signal(signal.SIGALRM, handle)
    try:
        for i in range(rounds):
            operation, expected = operations[i % len(operations)]
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chosen.uniform(1e-6, longest))
                result = operation(client)
                armed = False
                assert result == expected
            except Interrupted as error:
                armed = False
                error.__traceback__ = error.__context__ = None
                raised += 1
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            client.resume()
            assert client.add(i, 1) == i + 1
            assert others is None or not others.wrong
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised > 0
    assert eventually(lambda: client.under_way() == 0, PATIENCE)
    return raised


def test_signals_at_any_time_end_only_the_operation_of_the_main_thread(client: Client) -> None:
    """Handlers of real signals raise in the main thread, while other threads call and stream."""
    operations = [operation for name, operation in OPERATIONS.items() if name not in _LONG_ONES]
    with Others(client) as others:
        raised = signalled(client, operations, scaled(200, 20_000), 2e-3, others)
    figures.note("signals whose handler raises", raised=raised, items_of_others=others.read)


def test_a_signal_as_a_batch_ends_leaves_no_coroutine_unawaited(client: Client) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        signalled(client, [(_short_batches, None)], scaled(700, 30_000), 3e-4)
    assert [str(each.message) for each in warned] == []
