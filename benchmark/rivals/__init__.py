"""Other ways to call, each as a good engineer would use it. Their packages never enter the product.

A file holds both sides of one of them: ``serve`` and ``connect``. Here stands what each can do and what it needs.
"""

from __future__ import annotations

from typing import Any, Final

from benchmark.subjects import NATS_SERVER, Ability, Loop, Subject

_GROUP: Final = "--group rivals"


def _rival(
    name: str,
    module: str,
    loop: Loop,
    *abilities: Ability,
    form: str = "",
    needs: tuple[str, ...] = (),
    install: str = _GROUP,
    program: str = "",
    serves: bool = True,
    shared: str | None = None,
    restless: bool = False,
    family: str = "",
) -> Subject:
    place, suffix = f"benchmark.rivals.{module}", f"_{form}" if form else ""
    return Subject(
        name,
        f"{place}:connect{suffix}",
        f"{place}:serve{suffix}" if serves else None,
        loop,
        loop,
        frozenset(abilities),
        needs=needs,
        install=install,
        program=program,
        shared=(shared if ":" in shared else f"{place}:{shared}") if shared else None,
        restless=restless,
        family=family or module,
    )


def _lock(name: str, module: str, loop: Loop = "none", **more: Any) -> Subject:
    return _rival(name, module, loop, "lock", serves=False, **more)


def _signals(name: str, module: str, form: str = "signals", **more: Any) -> Subject:
    return _rival(name, module, "none", "signals", form=form, **more)


def _queue(name: str, module: str, *abilities: Ability, **more: Any) -> Subject:
    """Return its processes are forked by the client; they have a loop if they need one."""
    return _rival(name, module, "none", "queue", *abilities, serves=False, **more)


def _topic(name: str, module: str, *abilities: Ability, **more: Any) -> Subject:
    """Return the subject of a topic."""
    return _rival(name, module, "none", "topic", *abilities, serves=False, **more)


def _studied(name: str, module: str, form: str) -> Subject:
    """Return a subject of a published experiment."""
    return _rival(name, module, "none", "study", form=form, serves=False)


def _kept(name: str, module: str, form: str, *abilities: Ability, **more: Any) -> Subject:
    """Values that processes share, which the client forks."""
    return _rival(name, module, "none", "store", *abilities, form=form, **{"serves": False, **more})


def _pool(name: str, module: str, *abilities: Ability, **more: Any) -> Subject:
    """Return the client has one, in a loop if it needs that."""
    return _rival(name, module, "none", "pool", *abilities, serves=False, **more)


_ONE: Final = "queue, one"
_ARRAYS: Final = "topic, arrays"
_FIFO: Final = "faster_fifo_queue"
_READ: Final[tuple[Ability, ...]] = ("store, read", "store, read beside")
_DICT: Final = "store, dict"
_WHOLE: Final = "store, transaction"
_SUBMIT: Final = "pool, submit"
_LOCKS: Final = "kept_by_locks"
_OBJECTS: Final = "inter_process_py_objects"
_NATS: Final[dict[str, Any]] = {"needs": ("nats", "numpy"), "install": "nats-py numpy", "shared": NATS_SERVER}
_SOCKET: Final[tuple[Ability, ...]] = ("call", "concurrent", "stream", "bulk", "clients", "connections")

RIVALS: Final = (
    _rival("socket, msgspec, uvloop", "asyncio_protocol", "uvloop", *_SOCKET, form="msgspec"),
    _rival("socket, msgspec, asyncio", "asyncio_protocol", "asyncio", *_SOCKET, form="msgspec"),
    _rival("socket, msgpack, uvloop", "asyncio_protocol", "uvloop", *_SOCKET, form="msgpack"),
    _rival("socket, msgpack, asyncio", "asyncio_protocol", "asyncio", *_SOCKET, form="msgpack"),
    _rival("socket, large frames, uvloop", "large_socket", "uvloop", "call", "concurrent", "bulk"),
    _rival("asyncio streams, uvloop", "asyncio_streams", "uvloop", *_SOCKET),
    _rival("asyncio streams, asyncio", "asyncio_streams", "asyncio", *_SOCKET),
    _rival("multiprocessing Pipe", "pipe", "none", "call", "bulk", "clients", "connections"),
    _rival("multiprocessing Queue", "queue", "none", "call", "bulk", shared="make"),
    _rival("multiprocessing Manager", "manager", "none", "call", "clients"),
    _rival("ProcessPoolExecutor, uvloop", "process_pool", "uvloop", "call", "concurrent", serves=False),
    _rival("ThreadPoolExecutor, uvloop", "threads", "uvloop", "call", "concurrent", serves=False),
    _rival("pyzmq, uvloop", "pyzmq_asyncio", "uvloop", *_SOCKET, needs=("zmq",)),
    _rival("pyzmq, asyncio", "pyzmq_asyncio", "asyncio", *_SOCKET, needs=("zmq",)),
    _rival("pyzmq, sync", "pyzmq_sync", "none", "call", "bulk", "clients", "connections", needs=("zmq",)),
    _rival("grpc.aio", "grpc_aio", "asyncio", *_SOCKET, needs=("grpc",)),
    _rival("grpc.aio, TCP", "grpc_aio", "asyncio", "hosts", form="tcp", needs=("grpc", "numpy"), family="grpc_aio"),
    _rival("nats-py, asyncio", "nats_requests", "asyncio", "hosts", **_NATS),
    _rival("nats-py, uvloop", "nats_requests", "uvloop", "hosts", **_NATS),
    _rival("rpyc", "rpyc_calls", "none", "call", "bulk", "clients", "connections", needs=("rpyc",)),
    _rival("Pyro5", "pyro", "none", "call", "bulk", "clients", "connections", needs=("Pyro5",)),
    _rival("shm-rpc-bridge, calls", "shm_bridge", "none", "call", needs=("shm_rpc_bridge",)),
    _rival("shm-rpc-bridge, msgspec", "shm_bridge", "none", "call", form="transport", needs=("shm_rpc_bridge",)),
    _rival("faster-fifo", "faster_fifo_queue", "none", "call", "bulk", needs=("faster_fifo",), shared="make"),
    _rival("iceoryx2", "iceoryx", "none", "call", "in place", needs=("iceoryx2",), restless=True),
    _lock("multiprocessing.Lock", "multiprocessing_locks", shared="make"),
    _lock("multiprocessing.Lock, executor", "multiprocessing_locks", "uvloop", form="executor", shared="make"),
    _lock("posix_ipc.Semaphore", "posix_semaphores", needs=("posix_ipc",)),
    _lock("fcntl.lockf", "record_locks"),
    _lock("filelock", "file_locks", needs=("filelock",)),
    _signals("multiprocessing.Semaphore", "multiprocessing_locks", shared="make_signals"),
    _signals("posix_ipc.Semaphore, signals", "posix_semaphores", needs=("posix_ipc",)),
    _pool("ProcessPoolExecutor", "executor_pools", _SUBMIT, family="process_pool"),
    _pool("ProcessPoolExecutor, chunks", "executor_pools", form="chunks", family="process_pool"),
    _pool("multiprocessing.Pool", "multiprocessing_pool", _SUBMIT),
    _pool("multiprocessing.Pool, whole list", "multiprocessing_pool", form="whole"),
    _pool("loky", "executor_pools", _SUBMIT, form="loky", needs=("loky",), family="loky"),
    _pool("joblib", "joblib_pool", needs=("joblib",)),
    _pool("mpire", "mpire_pool", _SUBMIT, needs=("mpire",)),
    _pool("pebble", "pebble_pool", _SUBMIT, needs=("pebble",)),
    _pool("aiomultiprocess", "aiomultiprocess_pool", _SUBMIT, needs=("aiomultiprocess",)),
    _rival("TCP, pickle", "study_commands", "none", "command", needs=("numpy",), install="numpy"),
    _signals("UDP", "datagrams", form="udp"),
    _signals("local datagrams", "datagrams", form="unix"),
    _queue("multiprocessing.Queue", "multiprocessing_queues", _ONE, "queue, copied", form="queue", family="queue"),
    _queue("multiprocessing.Queue, lists", "multiprocessing_queues", form="queue_lists", family="queue"),
    _queue(
        "multiprocessing.SimpleQueue", "multiprocessing_queues", _ONE, "queue, copied", form="simple", family="queue"
    ),
    _queue("multiprocessing.SimpleQueue, lists", "multiprocessing_queues", form="simple_lists", family="queue"),
    _queue("faster-fifo, queue", "faster_fifo_ends", _ONE, "queue, copied", family=_FIFO, needs=("faster_fifo",)),
    _queue("pyzmq, PUSH and PULL", "zmq_push", _ONE, "queue, copied", family="pyzmq_sync", needs=("zmq",)),
    _queue(
        "iceoryx2, samples",
        "iceoryx_ends",
        _ONE,
        "queue, in place",
        family="iceoryx",
        needs=("iceoryx2",),
        restless=True,
    ),
    _queue("socket, dealing, uvloop", "dealing_socket", _ONE),
    _topic("pyzmq, XPUB and SUB", "zmq_pub", _ARRAYS, family="pyzmq_sync", needs=("zmq",)),
    _topic("iceoryx2, to all", "iceoryx_topic", _ARRAYS, family="iceoryx", needs=("iceoryx2",), restless=True),
    _topic("UNIX socket, to all", "sockets_to_all", _ARRAYS, form="unix"),
    _topic("TCP, to all", "sockets_to_all", _ARRAYS, form="tcp"),
    _topic("UNIX socket, to all, uvloop", "dealing_socket", form="to_all"),
    _studied("TCP", "study_sockets", "tcp"),
    _studied("TCP, epoll", "study_sockets", "epoll"),
    _studied("UNIX socket", "study_sockets", "unix"),
    _studied("one packet, lockless", "study_rings", "one_packet"),
    _studied("ring, mutex", "study_rings", "mutex"),
    _studied("ring, adaptive mutex", "study_rings", "adaptive"),
    _studied("ring, robust mutex", "study_rings", "robust"),
    _rival("InterProcessPyObjects", "inter_process_py_objects", "none", "bulk", needs=("ipc_py_objects",)),
    *(
        _kept(
            f"InterProcessPyObjects {shape}",
            f"{_OBJECTS}_fields",
            shape,
            *more,
            needs=("ipc_py_objects",),
            family=_OBJECTS,
        )
        for shape, more in (("list", ()), ("dataclass", ()), ("dict", (_DICT,)))
    ),
    _kept("UltraDict", _LOCKS, "ultra", *_READ, _DICT, needs=("UltraDict",), family="ultra_dict"),
    _kept("shared-memory-dict", _LOCKS, "shared_memory_dict", *_READ, _DICT, needs=("shared_memory_dict",)),
    _kept("Manager().dict", _LOCKS, "manager", *_READ, _DICT),
    # Not beside a writer: a value may be read in halves, and then it raises ValueError.
    _kept("ShareableList", _LOCKS, "list", "store, read"),
    _kept("multiprocessing.Value", _LOCKS, "value", *_READ),
    _kept("lmdb", "lmdb_fields", "", *_READ, _DICT, _WHOLE, needs=("lmdb",)),
    _kept("Redis", "redis_fields", "", *_READ, _DICT, _WHOLE, needs=("redis",), program="redis-server", serves=True),
)
