"""Interceptors, which wrap each call on either side.

An interceptor is called with the :class:`shmrpc.Call` and returns a context manager. The call runs inside the context
manager, from before its first step to after its last item. An exception on entering rejects the call, and an
exception of the call passes through the manager. ``contextlib.contextmanager`` and
``contextlib.asynccontextmanager`` make an interceptor from a generator function::

    @contextlib.contextmanager
    def timed(call: shmrpc.Call) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            print(call.service, call.endpoint, time.perf_counter() - began)
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any

from shmrpc.service.call import Call

#: Interceptors for threads.
SyncInterceptor = Callable[[Call], AbstractContextManager[Any]]
#: Interceptors for clients and servers in an event loop, which may return async context managers.
Interceptor = Callable[[Call], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


def check_interceptors(interceptors: Iterable[Any], *, plain: bool = False) -> tuple[Any, ...]:
    """Return the interceptors as a tuple. Raises TypeError for an invalid one. With ``plain``, they run in threads."""
    if callable(interceptors) or isinstance(interceptors, (str, bytes)) or not isinstance(interceptors, Iterable):
        raise TypeError(f"interceptors: expected a list of them, got {interceptors!r}")
    found = tuple(interceptors)
    for each in found:
        _check_interceptor(each, plain=plain)
    return found


def _check_interceptor(interceptor: Any, *, plain: bool) -> None:
    """Raise TypeError unless an interceptor is a function of a call, and no generator or coroutine function.

    ``plain``: True if it must return a plain context manager, False for an asynchronous one; only the advice differs.
    """
    decorator = "contextlib.contextmanager" if plain else "contextlib.asynccontextmanager"
    what = f"interceptor {interceptor!r}: expected a function of the call that returns a context manager"
    if not callable(interceptor):
        raise TypeError(what)
    if isinstance(interceptor, (contextlib.ContextDecorator, contextlib.AsyncContextDecorator)):
        raise TypeError(f"{what}, not the context manager itself: leave the parentheses out")
    if inspect.isgeneratorfunction(interceptor):
        raise TypeError(f"{what}: decorate it with contextlib.contextmanager")
    if inspect.isasyncgenfunction(interceptor) or inspect.iscoroutinefunction(interceptor):
        made = "a plain def that yields once" if plain else "an async def that yields once"
        raise TypeError(f"{what}: make it {made}, decorated with {decorator}")
    check_takes_one_argument(what, interceptor, "interceptor(call)")


def check_takes_one_argument(what: str, function: Callable[..., Any], call: str) -> None:
    """Raise TypeError unless the function accepts one argument, or Python does not know its signature.

    The message begins with ``what`` and shows ``call``.
    """
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # The signature is not available.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(f"{what}, called as {call}: {error}") from None


async def enter_all(stack: AsyncExitStack, interceptors: Sequence[Interceptor], call: Call) -> None:
    """Enter the context managers of all interceptors for the call, the first one outermost.

    Raises TypeError if an interceptor returns no context manager, and the exceptions of interceptors. The caller closes
    the stack, also after a failure.
    """
    for interceptor in interceptors:
        manager = interceptor(call)
        if isinstance(manager, AbstractAsyncContextManager):
            await stack.enter_async_context(manager)
        elif isinstance(manager, AbstractContextManager):
            stack.enter_context(manager)
        else:
            raise TypeError(f"interceptor {interceptor!r}: expected a context manager, got {manager!r}")


def enter_all_sync(stack: AsyncExitStack, interceptors: Sequence[SyncInterceptor], call: Call) -> None:
    """Enter the plain context managers of all interceptors for the call, the first one outermost.

    Raises TypeError if an interceptor returns no plain context manager, and the exceptions of interceptors. The caller
    closes the stack, also after a failure.
    """
    for interceptor in interceptors:
        manager: object = interceptor(call)
        if not isinstance(manager, AbstractContextManager):
            raise TypeError(f"interceptor {interceptor!r}: expected a plain context manager, got {manager!r}")
        stack.enter_context(manager)
