"""Waiting for what takes time, in a thread and in asyncio.

A call of the native part gets a future, and begins. Whoever stops waiting, by Ctrl-C or because a task is cancelled,
gives it up.
"""

import asyncio
import atexit
import os
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Generic, Optional, TypeVar, Union

from consul_semaphore import _native

T = TypeVar("T")

Seconds = Union[float, timedelta]
"""A time: a number of seconds, or a `timedelta`."""

Begin = Callable[[Future[T]], Optional[_native.Call]]
"""Begins a call. What it returns gives it up; without that it can't be."""


def seconds(time: Seconds) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else time


def wait(begin: Begin[T], timeout: Optional[float] = None) -> T:
    """Waits in this thread."""
    future: Future[T] = Future()
    call = begin(future)
    try:
        return future.result(timeout)
    except BaseException:
        _give_up(call, future)
        raise
    finally:
        # An exception refers to this frame: it would keep alive what came too late.
        del future


async def wait_async(begin: Begin[T]) -> T:
    """Waits in a task."""
    future: Future[T] = Future()
    call = begin(future)
    try:
        return await asyncio.wrap_future(future)
    except BaseException:
        _give_up(call, future)
        raise
    finally:
        del future


def _give_up(call: Optional[_native.Call], future: Future[T]) -> None:
    if call is not None:
        call.cancel()
    future.cancel()


class PerProcess(Generic[T]):
    """What a child that was forked makes anew: it has none of its parent's threads."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        here = os.getpid()
        if here not in self._made:
            self._made = {here: self._make()}
        return self._made[here]


def _end() -> None:
    """Before Python ends: gives back what the program has not, and waits for that."""
    try:
        future: Future[None] = Future()
        if _native.all_released(future) is not None:
            future.result()
    finally:
        _native.stop()


atexit.register(_end)
