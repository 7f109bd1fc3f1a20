"""The part of the package that is written in Rust. Programs use what `consul_semaphore` has."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Optional, Protocol, TypedDict, final

__all__ = ["Call", "Consul", "Semaphore", "Slot", "all_released", "stop"]

class _Window(Protocol):
    @property
    def schedule(self) -> str: ...
    @property
    def duration(self) -> float: ...
    @property
    def time_zone(self) -> Optional[str]: ...
    @property
    def limit(self) -> Optional[int]: ...

class _Part(Protocol):
    @property
    def prefix(self) -> str: ...
    @property
    def limit(self) -> Optional[int]: ...
    @property
    def mutex(self) -> bool: ...
    @property
    def period(self) -> Optional[float]: ...
    @property
    def slots(self) -> int: ...
    @property
    def windows(self) -> Sequence[_Window]: ...
    @property
    def reserve(self) -> Optional[tuple[int, int]]: ...

class _Common(Protocol):
    @property
    def priority(self) -> Optional[int]: ...
    @property
    def fair_order(self) -> Optional[bool]: ...
    @property
    def must_exist(self) -> Optional[bool]: ...
    @property
    def cooldown(self) -> Optional[float]: ...
    @property
    def ttl(self) -> Optional[float]: ...
    @property
    def lock_delay(self) -> Optional[float]: ...
    @property
    def grace(self) -> Optional[float]: ...
    @property
    def host(self) -> Optional[str]: ...
    @property
    def program(self) -> Optional[str]: ...
    @property
    def node(self) -> Optional[str]: ...
    @property
    def agent_checks(self) -> Optional[bool]: ...

class _Summary(TypedDict):
    prefix: str
    kind: str
    limit: Optional[int]
    held: int
    free: Optional[int]
    waiting: Optional[int]
    period_seconds: Optional[int]
    problem: Optional[str]

class _Contender(TypedDict):
    session: str
    kind: str
    name: str
    where: str
    since: Optional[datetime]

class _Holder(TypedDict):
    fencing_token: Optional[int]
    slot_index: Optional[int]
    slot_name: Optional[str]
    dead: bool
    cools_until: Optional[datetime]
    never_expires: bool

class _Waiter(TypedDict):
    priority: Optional[int]
    slots: int

class _Usage(TypedDict):
    summary: _Summary
    holders: list[tuple[_Contender, _Holder]]
    waiters: list[tuple[_Contender, _Waiter]]

@final
class Call:
    def cancel(self) -> None: ...

@final
class Consul:
    def __new__(cls, settings: Mapping[str, str], datacenter: Optional[str]) -> Consul: ...

@final
class Semaphore:
    def __new__(
        cls, consul: Consul, parts: Sequence[_Part], common: _Common, log: Callable[[int, str], None]
    ) -> Semaphore: ...
    def acquire(self, timeout: Optional[float], future: Future[Slot]) -> Call: ...
    def usage(self, future: Future[list[_Usage]]) -> Call: ...
    def all_released(self, future: Future[None]) -> Call: ...

@final
class Slot:
    def sequencers(self) -> list[tuple[str, str, int, int, Optional[int]]]: ...
    def begin(self) -> bool: ...
    def is_here(self) -> bool: ...
    def is_lost(self) -> bool: ...
    def when_lost(self, future: Future[Optional[str]]) -> Call: ...
    def release(self, future: Future[Optional[str]]) -> None: ...

def all_released(future: Future[None]) -> Optional[Call]: ...
def stop() -> None: ...
