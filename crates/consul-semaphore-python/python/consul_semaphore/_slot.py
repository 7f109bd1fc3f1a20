"""A slot, and asking for one."""

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar, cast

from consul_semaphore import _native
from consul_semaphore._calls import Seconds, seconds, wait, wait_async
from consul_semaphore._errors import SlotLostError, StillHeldError

if TYPE_CHECKING:
    from consul_semaphore._semaphore import Semaphore

log = logging.getLogger("consul_semaphore")

Function = TypeVar("Function", bound=Callable[..., Any])


class Sequencer(NamedTuple):
    """Consul's sequencer of a slot, by which others can check that it is still held."""

    lock_key: str
    """The key that the session has locked."""
    session: str
    """The session in Consul that holds the slot."""
    lock_index: int
    """The key's `LockIndex` when the slot was granted."""
    fencing_token: int
    """The raft index of the grant."""
    slot_index: Optional[int] = None
    """The number of the slot among all slots of its semaphore, from 0, which no other holder has meanwhile."""


class Slot:
    """A slot that is held, or all that were asked for together. `with` and `async with` give it back.

    It is kept alive in the background until it is given back, or nothing refers to it any more. It can be lost, as when
    somebody destroys its session, or Consul can't be reached for nearly its TTL. Then the work must end:

    - `async with` and `Semaphore.run` cancel their task, and raise `SlotLostError`
    - in a thread nobody can interrupt the work: ask `lost` before each step that can't be undone, or wait for it
      elsewhere, with `wait_lost`. In the end `with` raises `SlotLostError`, if there is no other exception.
    """

    def __init__(self, native: _native.Slot) -> None:
        self._native = native
        self.sequencers: list[Sequencer] = [Sequencer(*of) for of in native.sequencers()]
        """Of all slots that were granted together, in the order in which their semaphores were named."""
        self._watch: Optional[_Watch] = None
        self._callbacks: list[_native.Call] = []

    def __repr__(self) -> str:
        return f"<Slot {self.sequencers}>"

    @property
    def sequencer(self) -> Sequencer:
        """Of several slots, that of the first."""
        return self.sequencers[0]

    @property
    def session(self) -> str:
        """The session in Consul that holds it: of several slots, the one that holds the first."""
        return self.sequencer.session

    @property
    def fencing_token(self) -> int:
        """A number that is greater than that of every earlier grant at the prefix, whoever got it.

        A resource that keeps the greatest one that it has seen, and refuses smaller ones, is safe from holders that
        have lost their slot without noticing. With more slots than one it only orders the grants.
        """
        return self.sequencer.fencing_token

    @property
    def index(self) -> Optional[int]:
        """The number of the slot among all slots of the semaphore: a number from 0 that no other holder has meanwhile.

        Usually it is the smallest number that is free. It says which GPU, licence seat or port is this program's. Of
        several slots it is that of the first; the slots of a rate have none.
        """
        return self.sequencer.slot_index

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost. This asks nobody, and takes no time."""
        return self._native.is_lost()

    def wait_lost(self, timeout: Optional[Seconds] = None) -> bool:
        """Waits until it is lost. `False`: it was given back first, or the time is over."""
        try:
            return wait(self._native.when_lost, None if timeout is None else seconds(timeout)) is not None
        except FutureTimeout:
            return False

    async def wait_lost_async(self) -> bool:
        """The same in asyncio, without a time: `asyncio.wait_for` has one."""
        return await wait_async(self._native.when_lost) is not None

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Calls a function in a thread of its own as soon as the slot is lost, at once if it is lost already.

        The function is not called if the slot is given back first. It can end the work in a way that another thread
        can, for example by an event that the work checks, or by ending a child process.
        """
        lost: Future[Optional[str]] = Future()
        lost.add_done_callback(functools.partial(_call_back, callback))
        self._callbacks.append(self._native.when_lost(lost))

    def release(self) -> None:
        """Gives it back, and waits until others can have it.

        A slot of a rate, or with a cooldown, stays held until that is over: it is not waited for. If it is being given
        back already, or was, this waits for that, and says the same of it.

        Raises `SlotLostError` if it was lost before, and `StillHeldError` if it could not be given back.
        """
        _raise_lost(wait(self._native.release))

    async def release_async(self) -> None:
        """The same in asyncio. If it is cancelled, the slot is given back all the same."""
        _raise_lost(await wait_async(self._native.release))

    def __enter__(self) -> "Slot":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        # A child that was forked in the block leaves its parent the slot.
        if not self._native.is_here():
            return
        try:
            self.release()
        except (SlotLostError, StillHeldError) as trouble:
            _report(trouble, error)

    async def __aenter__(self) -> "Slot":
        self._watch = _Watch(self)
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if not self._native.is_here():
            return
        watch, self._watch = self._watch, None
        ended = await watch.close() if watch is not None else _Ended.NEVER
        try:
            await self.release_async()
        except (SlotLostError, StillHeldError) as trouble:
            # A cancellation that was only the watch's says no more than that the slot is lost.
            by_watch = ended is _Ended.BY_WATCH and isinstance(error, asyncio.CancelledError)
            _report(trouble, None if by_watch else error)
        if ended is _Ended.BY_OTHERS and error is None:
            raise asyncio.CancelledError


def _raise_lost(why: Optional[str]) -> None:
    if why is not None:
        raise SlotLostError(f"{why}: others may have it, so end what is left of the work, and take another slot")


def _call_back(callback: Callable[[], object], lost: "Future[Optional[str]]") -> None:
    if lost.cancelled() or lost.exception() is not None or lost.result() is None:
        return
    # The thread that calls this renews sessions, so it does not wait for a function of somebody else.
    threading.Thread(target=callback, name="consul_semaphore.on_lost", daemon=True).start()


def _report(trouble: Exception, error: Optional[BaseException]) -> None:
    """What is wrong with the slot at the end of its block: its work counts for more than a slot that expires."""
    if isinstance(trouble, SlotLostError) and error is None:
        raise trouble
    log.warning("%s", trouble)


class _Watch:
    """Cancels the task that it is made in when the slot is lost."""

    def __init__(self, slot: Slot) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("async with a slot needs a task of asyncio")
        self._task = task
        # Only since Python 3.11 a task counts how often it is cancelled.
        self._before: int = task.cancelling() if hasattr(task, "cancelling") else 0
        self._interrupted = False
        self._closed = False
        lost: Future[Optional[str]] = Future()
        self._call = slot._native.when_lost(lost)
        self._lost = asyncio.wrap_future(lost)
        self._lost.add_done_callback(self._interrupt)

    def _interrupt(self, lost: "asyncio.Future[Optional[str]]") -> None:
        # The loop may have it planned already when the watch is closed.
        if self._closed or lost.cancelled() or lost.exception() is not None:
            return
        if lost.result() is not None:
            self._interrupted = True
            self._task.cancel()

    async def close(self) -> "_Ended":
        """Ends it. A task that it has cancelled goes on, unless others have cancelled it, too."""
        self._closed = True
        self._lost.cancel()
        self._call.cancel()
        if not self._interrupted:
            return _Ended.NEVER
        try:
            # The task may not know yet that it is cancelled.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        if hasattr(self._task, "uncancel") and self._task.uncancel() > self._before:
            return _Ended.BY_OTHERS
        return _Ended.BY_WATCH


class _Ended(Enum):
    """Who has cancelled a task."""

    NEVER = "never"
    BY_WATCH = "by the watch"
    BY_OTHERS = "by others"


class SlotRequest:
    """What `Semaphore.slot` returns: `with` and `async with` wait for the slot, and give it back.

    It is also a decorator of a function, which may be a coroutine: each call of the function has a slot of its own.
    """

    def __init__(self, semaphore: "Semaphore", timeout: Optional[Seconds]) -> None:
        self._semaphore = semaphore
        self._timeout = timeout
        self._slot: Optional[Slot] = None
        self._used = False

    def __enter__(self) -> Slot:
        self._use()
        self._slot = self._semaphore.acquire(self._timeout)
        return self._slot.__enter__()

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._slot is not None:
            self._slot.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Slot:
        self._use()
        self._slot = await self._semaphore.acquire_async(self._timeout)
        return await self._slot.__aenter__()

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._slot is not None:
            await self._slot.__aexit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*arguments: Any, **named: Any) -> Any:
                return await self._semaphore.run(lambda _slot: function(*arguments, **named), self._timeout)

            return cast(Function, call_async)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with SlotRequest(self._semaphore, self._timeout):
                return function(*arguments, **named)

        return cast(Function, call)

    def _use(self) -> None:
        if self._used:
            raise RuntimeError("a request is for one block: call slot() for each")
        self._used = True
