"""The creation of a pool from its options."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack

from shmrpc.basics.checks import check_bytes, check_seconds, check_whole
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.pools.engine import EngineOptions, PoolEngine
from shmrpc.pools.inline_pool import InlinePool
from shmrpc.pools.pool import Pool, check_worker_count
from shmrpc.pools.processes.cpus import thread_limits, usable_cpus
from shmrpc.pools.processes.spawner import SpawnSettings
from shmrpc.pools.scheduling.worker_set import WorkerOptions
from shmrpc.pools.transfer.functions import is_importable, make_reference
from shmrpc.pools.transfer.main_module import ByValuePickler, alias_main_module, can_import_main
from shmrpc.pools.worker.current_worker import is_worker
from shmrpc.values.pickling import pickle_main_by_value

#: Seconds that a cancelled task has to end before its worker is killed.
DEFAULT_GRACE: Final = 1.0
#: Bytes that a worker needs for itself.
_MIN_WORKER_MEMORY: Final = 64 << 20


def _check_environment(environment: Any) -> None:
    """Raise TypeError unless this is a mapping of str to str, or ValueError for variables that no process can have."""
    if not isinstance(environment, Mapping):
        raise TypeError(f"environment: expected a dict of str to str, got {environment!r}")
    for name, value in environment.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"environment: expected names and values of type str, got {name!r}: {value!r}")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"environment: expected a name without `=`, and no NUL in either, got {name!r}: {value!r}")
        try:
            os.fsencode(name + value)
        except UnicodeEncodeError:
            raise ValueError(f"environment: expected text that can be encoded, got {name!r}: {value!r}") from None


def _check_initargs(initargs: Any) -> tuple[Any, ...]:
    """Return the arguments of an initializer as a tuple. Raises TypeError for text, bytes, and what has no items."""
    if isinstance(initargs, (str, bytes, bytearray)) or not isinstance(initargs, Iterable):
        raise TypeError(f"initargs: expected a tuple or list of arguments, got {initargs!r}")
    return tuple(initargs)


class PoolOptions(TypedDict, total=False):
    """Options of a pool: see :func:`pool`."""

    initializer: Callable[..., Any] | None
    initargs: Sequence[Any]
    retries: int
    grace: float
    max_tasks_per_child: int | None
    memory: int | str | None
    affinity: Literal["spread"] | None
    environment: Mapping[str, str]


def pool(workers: int | None = None, **options: Unpack[PoolOptions]) -> Pool:
    """Return a pool of processes that run functions: ``async with shmrpc.pool(4) as pool: await pool.run(f, x)``.

    No process starts before ``async with``. ``workers``: number of processes, at most 4096; by default one for each CPU
    that this process may use, according to its affinity and its cgroup.

    Keyword options:

    - ``initializer``, ``initargs``: a function that each worker calls before its first task, and its arguments. Tasks
      find its result as ``shmrpc.worker().state``; an async function is awaited.
    - ``retries``: number of times that a task runs again after its worker has died. With 0, the default, the task fails
      with WorkerDied.
    - ``grace``: seconds that a cancelled task has to end before its worker is killed. 1 by default.
    - ``max_tasks_per_child``: number of tasks after which a worker is replaced; None, the default: no limit.
    - ``memory``: maximum data of a worker, in bytes or as a size such as ``"2GiB"``, at least 64 MiB; a task that needs
      more gets a MemoryError.
    - ``affinity="spread"`` pins each worker to a CPU of its own.
    - ``environment``: variables of the workers, besides those of this process. By default, variables give the numerical
      libraries of each worker a share of the CPUs.

    Functions that can be imported are sent by name, all others by cloudpickle, once to each worker, and again when what
    they refer to has changed. Arguments and results travel as those of calls with ``codec="pickle"``: arrays through
    shared memory; a value that occurs twice in the arguments of a task arrives as one object. Within a worker, a pool
    runs its tasks at once, in that worker, and the keyword options have no effect.

    Raises ValueError or TypeError for invalid options, EncodeError for an initializer that cannot be sent, and
    LocalProtocolError in a worker that imports the program. For errors of the start, see :meth:`Pool.__aenter__`.
    """
    if unknown := options.keys() - PoolOptions.__annotations__.keys():
        hint = "; did you mean workers, its first argument?" if "max_workers" in unknown else ""
        raise TypeError(f"pool() has no option {', '.join(sorted(unknown))}{hint}")
    count = usable_cpus() if workers is None else check_worker_count(workers)
    grace, retries = options.get("grace", DEFAULT_GRACE), options.get("retries", 0)
    check_seconds("grace", grace)
    if check_whole("retries", retries, "a number of times") < 0:
        raise ValueError(f"retries: expected 0 or more, got {retries}")
    max_tasks, memory = options.get("max_tasks_per_child"), None
    if max_tasks is not None and check_whole("max_tasks_per_child", max_tasks, "a number of tasks") < 1:
        raise ValueError(f"max_tasks_per_child: expected 1 or more, got {max_tasks}")
    if (size := options.get("memory")) is not None:
        memory = check_bytes("memory", size, _MIN_WORKER_MEMORY, None)
    initializer, affinity = options.get("initializer"), options.get("affinity")
    if initializer is not None and not callable(initializer):
        raise TypeError(f"initializer: expected a function, got {initializer!r}")
    if affinity not in (None, "spread"):
        raise ValueError(f"affinity: expected 'spread' or None, got {affinity!r}")
    environment = options.get("environment", {})
    _check_environment(environment)
    initargs = _check_initargs(options.get("initargs", ()))
    if is_worker():
        return InlinePool(count)
    keep_standard_descriptors()
    settings = SpawnSettings(
        {**thread_limits(count), **environment},
        memory,
        tuple(sorted(os.sched_getaffinity(0))) if affinity == "spread" else None,
        by_value=not can_import_main(),
    )
    if settings.by_value:
        pickle_main_by_value()
    alias_main_module()
    if initializer is not None and not is_importable(initializer):
        make_reference(initializer, ByValuePickler)  # Raises EncodeError for a function that cannot be sent.
    worker_options = WorkerOptions(settings, initializer, initargs, grace, max_tasks)
    return Pool(PoolEngine(count, EngineOptions(worker_options, retries)))
