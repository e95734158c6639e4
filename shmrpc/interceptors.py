"""Interceptors: what stands around each call, on either side.

An interceptor is called with the :class:`shmrpc.Call` and gives a context manager. The call runs inside of
it, from before its first step to after its last item: what the manager raises on entering refuses the call,
what the call raises goes through it. ``contextlib.contextmanager`` and ``contextlib.asynccontextmanager``
make one of a generator function::

    @contextlib.contextmanager
    def timed(call: shmrpc.Call) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            print(call.service, call.endpoint, time.perf_counter() - began)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any

from shmrpc.call import Call

#: For programs without a loop.
SyncInterceptor = Callable[[Call], AbstractContextManager[Any]]
#: For clients and servers in a loop: the context manager may be an async one.
Interceptor = Callable[[Call], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


async def enter_all(stack: AsyncExitStack, interceptors: Sequence[Interceptor], call: Call) -> None:
    """Enters what each interceptor gives for the call, the first one outermost."""
    for interceptor in interceptors:
        manager = interceptor(call)
        if isinstance(manager, AbstractAsyncContextManager):
            await stack.enter_async_context(manager)
        elif isinstance(manager, AbstractContextManager):
            stack.enter_context(manager)
        else:
            raise TypeError(f"interceptor {interceptor!r}: expected a context manager, got {manager!r}")


def enter_all_plain(stack: ExitStack, interceptors: Sequence[SyncInterceptor], call: Call) -> None:
    """The same without a loop."""
    for interceptor in interceptors:
        manager: object = interceptor(call)
        if not isinstance(manager, AbstractContextManager):
            raise TypeError(f"interceptor {interceptor!r}: expected a plain context manager, got {manager!r}")
        stack.enter_context(manager)
