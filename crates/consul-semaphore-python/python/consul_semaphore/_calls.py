"""Waiting for what takes time, in a thread and in asyncio.

A call of the native part gets a future, and begins. Whoever stops waiting, by Ctrl-C or because a task is cancelled,
gives it up.
"""

import asyncio
import atexit
import os
import sys
import threading
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
        _end_with_multiprocessing(here)
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


_noted: dict[int, object] = {}
"""The processes of multiprocessing that end as below. Those that this one was forked from are in it, too."""


def _end_with_multiprocessing(here: int) -> None:
    """A process that multiprocessing has forked does not run what atexit has: multiprocessing's own finalizers it does.

    It forgets those of the time before its function runs, when there may be semaphores already.
    """
    parent = getattr(sys.modules.get("multiprocessing"), "parent_process", None)
    if parent is None or parent() is None:
        return
    mine = object()
    if _noted.setdefault(here, mine) is mine:
        from multiprocessing.util import Finalize

        # Other finalizers may need slots.
        Finalize(None, _end_after_threads, exitpriority=-100)


def _end_after_threads() -> None:
    """At this time other threads still work in their slots, and some end only when Python waits for them, which is next.

    So a thread waits for them, and Python for that.
    """
    if threading.main_thread().is_alive():
        atexit.unregister(_end)
        threading.Thread(target=_wait_and_end, name="semaphore-end").start()
    # Otherwise a process without multiprocessing was forked from one with it: there atexit is at work already.


def _wait_and_end() -> None:
    these = (threading.main_thread(), threading.current_thread())
    while others := [of for of in threading.enumerate() if of.is_alive() and not of.daemon and of not in these]:
        for thread in others:
            thread.join()
    _end()
