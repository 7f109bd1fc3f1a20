"""Semaphores, and what can be said of them."""

import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, fields, replace
from time import monotonic
from typing import Any, NamedTuple, Optional, TypeVar, Union

from consul_semaphore import _native
from consul_semaphore._calls import PerProcess, Seconds, seconds, wait, wait_async
from consul_semaphore._consul import Consul, default
from consul_semaphore._errors import InvalidSemaphoreError
from consul_semaphore._slot import Slot, SlotRequest, log
from consul_semaphore._usage import Usage, usage_of

T = TypeVar("T")


class Window(NamedTuple):
    """A time in which slots are granted."""

    schedule: str
    """When it opens: the five fields of cron, such as `0 22 * * 1-5`."""
    duration: Seconds
    """How long it stays open: whole minutes."""
    time_zone: Optional[str] = None
    """The schedule's time zone, such as `Europe/Berlin`. By default it is UTC."""
    limit: Optional[int] = None
    """How many slots may be held for one more to be granted in it. By default it is the semaphore's limit."""


class _Window(NamedTuple):
    """A window with its duration in seconds."""

    schedule: str
    duration: float
    time_zone: Optional[str]
    limit: Optional[int]


@dataclass(frozen=True)
class _Part:
    """What is said of one semaphore."""

    prefix: str
    limit: Optional[int]
    mutex: bool
    period: Optional[float]
    slots: int
    windows: tuple[_Window, ...]
    reserve: Optional[tuple[int, int]]


@dataclass(frozen=True)
class _Common:
    """What is said of all semaphores whose slots are taken together, and `None` for what is not."""

    priority: Optional[int] = None
    fair_order: Optional[bool] = None
    must_exist: Optional[bool] = None
    cooldown: Optional[float] = None
    ttl: Optional[float] = None
    lock_delay: Optional[float] = None
    grace: Optional[float] = None
    host: Optional[str] = None
    program: Optional[str] = None
    node: Optional[str] = None
    agent_checks: Optional[bool] = None

    def __and__(self, other: "_Common") -> "_Common":
        said: dict[str, Any] = {}
        for field in fields(self):
            values = {getattr(of, field.name) for of in (self, other)} - {None}
            if len(values) > 1:
                raise InvalidSemaphoreError(
                    f"{field.name}: slots that are taken together have it in common: say it of one of the semaphores"
                )
            said.update({field.name: value for value in values})
        return _Common(**said)


class Semaphore:
    """A semaphore in Consul, at this prefix. `a & b` is several whose slots are taken together.

    All who use the prefix must say the same of what it is:

    limit: how many slots it has, 1 to 5000
    mutex: it is a lock with one slot, that of `consul lock -n 1`, and of `api.Lock` in Go at `<prefix>/.lock`
    period: it counts starts: at most `limit` slots are granted in any such time, whole seconds from 1 s to 12 h

    And of what is asked for:

    slots: how many of its slots are taken together
    windows: slots are granted only while one of these is open. Other programs know nothing of it
    reserve: `(slots, priority)`: so many of the last free slots are for programs of this priority and above

    The rest `a & b` has in common: it is said of one of them, or the same of both.

    priority: higher ones are served first; within one priority the one who has waited for longest; by default 0
    cooldown: how long a slot stays held after the work, 0 s (default) to 24 h; at most for two TTLs if the program ends
        earlier
    ttl: how long a program that was killed keeps its slot, to twice that: 10 s to 24 h; by default 60 s
    lock_delay: how long the slot of a dead holder is not granted to this program, 0 s to 60 s; by default 15 s
    grace: how long the work takes at most to end once the slot is lost, less than half of the TTL; by default 10 s
    fair_order: whether slots are granted by priority and age (default), or go to the fastest
    must_exist: asking for a slot fails if nobody uses the prefix, which may be misspelt; by default it is made
    host, program: what people see in Consul; by default the host's name and that of the program's file
    node: the external node in Consul that owns the sessions. It must be named if there is a token: who may write the
        sessions of a node can end them all
    agent_checks: instead, the sessions belong to the agent on this machine, and end with its checks, too
    consul: how to reach Consul, for all the same object; by default by its environment variables

    Times are seconds, or `timedelta`.

    It can be made before a fork, given to a process of multiprocessing, and used by many threads and tasks. It costs
    nothing until a slot is asked for.
    """

    def __init__(
        self,
        prefix: str,
        *,
        limit: Optional[int] = None,
        mutex: bool = False,
        period: Optional[Seconds] = None,
        slots: int = 1,
        windows: Sequence[Window] = (),
        reserve: Optional[tuple[int, int]] = None,
        priority: Optional[int] = None,
        cooldown: Optional[Seconds] = None,
        ttl: Optional[Seconds] = None,
        lock_delay: Optional[Seconds] = None,
        grace: Optional[Seconds] = None,
        fair_order: Optional[bool] = None,
        must_exist: Optional[bool] = None,
        host: Optional[str] = None,
        program: Optional[str] = None,
        node: Optional[str] = None,
        agent_checks: Optional[bool] = None,
        consul: Optional[Consul] = None,
    ) -> None:
        part = _Part(
            prefix=prefix,
            limit=limit,
            mutex=mutex,
            period=_if_said(period),
            slots=slots,
            windows=tuple(_Window(of.schedule, seconds(of.duration), of.time_zone, of.limit) for of in windows),
            reserve=reserve,
        )
        common = _Common(
            priority=priority,
            fair_order=fair_order,
            must_exist=must_exist,
            cooldown=_if_said(cooldown),
            ttl=_if_said(ttl),
            lock_delay=_if_said(lock_delay),
            grace=_if_said(grace),
            host=host,
            program=program,
            node=node,
            agent_checks=agent_checks,
        )
        self._build((part,), common, consul)

    def _build(self, parts: tuple[_Part, ...], common: _Common, consul: Optional[Consul]) -> None:
        self._parts = parts
        self._common = common
        self._consul = consul or default()
        client = self._consul._client
        named = common if common.program else replace(common, program=_program())
        self._native = PerProcess(lambda: _native.Semaphore(client.get(), parts, named, log.log))
        # What is not possible is said now.
        self._native.get()

    def __getstate__(self) -> dict[str, Any]:
        # Another process connects by itself.
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._build(self._parts, self._common, self._consul)

    def __and__(self, other: "Semaphore") -> "Semaphore":
        """Slots of both are taken in one transaction, or none. While it waits, it holds nothing."""
        if not isinstance(other, Semaphore):
            return NotImplemented
        if self._consul is not other._consul:
            raise InvalidSemaphoreError("slots that are taken together are in one Consul: give both the same object")
        both = Semaphore.__new__(type(self))
        both._build(self._parts + other._parts, self._common & other._common, self._consul)
        return both

    def __repr__(self) -> str:
        return " & ".join(f"Semaphore({part.prefix!r}, limit={1 if part.mutex else part.limit})" for part in self._parts)

    def slot(self, timeout: Optional[Seconds] = None) -> SlotRequest:
        """Waits for a slot at the beginning of `with` or `async with`, and gives it back at the end.

        timeout: how long it waits; by default for as long as it takes. With 0 it does not wait.

        Raises `AcquireTimeoutError` if there was none in time, and other errors if waiting is useless.
        """
        return SlotRequest(self, timeout)

    def try_slot(self) -> SlotRequest:
        """The same without waiting: `slot(timeout=0)`."""
        return self.slot(timeout=0)

    async def run(
        self,
        work: Union[Coroutine[Any, Any, T], Callable[[Slot], Awaitable[T]]],
        timeout: Optional[Seconds] = None,
    ) -> T:
        """Waits for a slot in asyncio, runs the work in the slot, releases the slot, and returns the result of the work.

        work: a coroutine, which begins once there is a slot; or a function that is called with the slot and returns a
            coroutine. A task is refused, because a task runs without waiting for the slot
        timeout: how long the call waits for the slot, as in `slot`

        The work runs in the task of the caller. If the slot is lost, `run` cancels the work, and raises `SlotLostError`
        once the work has ended. Work that blocks the event loop is not ended, nor are threads and processes that the
        work started. If the caller is cancelled, so is the work, or the wait for the slot, and the slot is released.

        There is no `run` for threads, because nothing can end what a thread does: use `with` and `Slot.on_lost`.

        Raises `SlotLostError` if the slot was lost, the errors of `slot` if there is no slot, and what the work
        raises. If lost work raises another exception than its cancellation, that exception is raised, and the loss is
        logged.
        """
        if not (isinstance(work, Coroutine) or callable(work)):
            raise TypeError(f"run takes a coroutine, or a function that returns one, and not a {type(work).__name__}")
        try:
            async with self.slot(timeout) as slot:
                return await (work if isinstance(work, Coroutine) else work(slot))
        finally:
            # Work without a slot did not begin, and Python would warn that nobody has awaited it.
            if isinstance(work, Coroutine):
                work.close()

    def acquire(self, timeout: Optional[Seconds] = None) -> Slot:
        """A slot that lasts longer than a block: `release` gives it back.

        Whoever stops waiting, as by Ctrl-C, leaves the queue.
        """
        native, left = self._native.get(), _Deadline(timeout)
        while True:
            slot: _native.Slot = wait(lambda future: native.acquire(left.seconds(), future))
            # What is interrupted before this gives the slot back as if it had not been granted.
            if slot.begin():
                return Slot(slot)

    async def acquire_async(self, timeout: Optional[Seconds] = None) -> Slot:
        """The same in asyncio. Nobody cancels the task if the slot is lost: see `Slot.wait_lost_async`."""
        native, left = self._native.get(), _Deadline(timeout)
        while True:
            slot: _native.Slot = await wait_async(lambda future: native.acquire(left.seconds(), future))
            if slot.begin():
                return Slot(slot)

    def usage(self) -> list[Usage]:
        """Says who holds slots, who waits, and how many slots are free, for each prefix in the order in which the
        semaphores were named: `[usage] = db.usage()` for a single one.

        The answer is that of one moment for each prefix. A free slot may be gone when it is asked for, so ask with
        `try_slot` instead of looking first. Contenders that do not write who they are, such as `consul lock`, have
        names only if the token may read their sessions.

        Raises `UnreachableError` if Consul does not answer, and `RefusedError` if Consul refuses, for example because
        the token may not read the prefix.
        """
        return [usage_of(native) for native in wait(self._native.get().usage)]

    async def usage_async(self) -> list[Usage]:
        """Says in asyncio what `usage` says."""
        return [usage_of(native) for native in await wait_async(self._native.get().usage)]

    def all_released(self) -> None:
        """Waits until all slots that were taken here are free for others, also those that rest, and nobody waits."""
        wait(self._native.get().all_released)

    async def all_released_async(self) -> None:
        """The same in asyncio."""
        await wait_async(self._native.get().all_released)


class _Deadline:
    """How long a slot may be waited for."""

    def __init__(self, timeout: Optional[Seconds]) -> None:
        self._timeout = None if timeout is None else seconds(timeout)
        self._began = monotonic()

    def seconds(self) -> Optional[float]:
        """What is left of the time."""
        if self._timeout is None or self._timeout <= 0:
            return self._timeout
        return max(self._timeout - (monotonic() - self._began), 0.001)


def _if_said(time: Optional[Seconds]) -> Optional[float]:
    return None if time is None else seconds(time)


def _program() -> str:
    """The name of the program's file: that of the module's folder for `python -m`."""
    path = sys.argv[0] if getattr(sys, "argv", None) else ""
    folder, name = os.path.split(path)
    if name == "__main__.py":
        name = os.path.basename(folder)
    return name if name not in ("", "-", "-c", "-m") else "python"
