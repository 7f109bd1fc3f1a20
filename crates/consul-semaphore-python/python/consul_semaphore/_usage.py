"""Who uses a semaphore."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from consul_semaphore import _native


@dataclass(frozen=True)
class UsageContender:
    """A program or workload that holds or waits for slots.

    Contenders write these values themselves, and Consul does not check them. The package shortens texts and removes
    control characters. `str` describes the contender in a few words, such as `Job batch/migrate-1 on prod-eu`.
    """

    session: str
    """The session in Consul, or `(no session)` if somebody wrote a text that Consul can't have made."""
    kind: str
    """`Job` or another kind of workload; `Process` for a command of `consul-semaphore exec`; `Lease` for slots of
    `consul-semaphore acquire`; `Program` for another program; or `Unknown`."""
    name: str
    """`namespace/name` of a workload, the name of a command or program, or the name of the session. It may be empty."""
    where: str
    """The cluster of a workload, the host of a command or program, or the Consul node of the session. It may be
    empty."""
    since: Optional[datetime]
    """The time of the grant or, for a waiter, the time at which it joined the queue, by the contender's own clock, in
    UTC. `None` if it is unknown."""

    def __str__(self) -> str:
        place = f"on {self.where}" if self.where else ""
        return " ".join(part for part in (self.kind, self.name, place) if part)


@dataclass(frozen=True)
class UsageHolder(UsageContender):
    """A contender that holds a slot."""

    fencing_token: Optional[int]
    """The fencing token of the grant, if Consul still shows it."""
    slot_index: Optional[int]
    """The number of the slot among all slots of the semaphore, from 0. Slots of a rate have none, nor have slots of
    programs that do not number them."""
    slot_name: Optional[str]
    """The name that the holder was granted with the index."""
    dead: bool
    """Whether the session has ended, or no longer locks the holder's key."""
    cools_until: Optional[datetime]
    """The time until which the slot stays held although its work is done, in UTC."""
    never_expires: bool
    """Whether the session has no TTL."""


@dataclass(frozen=True)
class UsageWaiter(UsageContender):
    """A contender that waits for slots."""

    priority: Optional[int]
    """Its priority: higher ones are served first. `None` for a contender that follows no order."""
    slots: int
    """How many slots it waits for at this prefix."""


@dataclass(frozen=True)
class Usage:
    """The use of the semaphore at one prefix at one moment. `Semaphore.usage` returns it."""

    prefix: str
    """The prefix of the semaphore."""
    kind: str
    """`semaphore`, `mutex`, `rate`, or `unreadable` if the lock key is used for something else. A rate that nobody
    holds a slot of looks like a semaphore."""
    limit: Optional[int]
    """How many slots there are. `None` if nobody has written a limit yet, or if `kind` is `unreadable`."""
    held: int
    """How many slots are held, including those of dead holders."""
    free: Optional[int]
    """`limit` without the held slots, at least 0. `None` without a `limit`: all slots are free if nobody has written
    one yet. Another program may take a free slot first, or the slot may be meant for a waiter."""
    waiting: Optional[int]
    """How many contenders wait. `None` for a mutex, where nobody can see that."""
    period_seconds: Optional[int]
    """For a rate, the longest period of a holder, in seconds."""
    problem: Optional[str]
    """Why a number is missing, if `kind` is `unreadable`."""
    holders: tuple[UsageHolder, ...]
    """Those that hold slots, in the order of their grants, dead holders last."""
    waiters: tuple[UsageWaiter, ...]
    """Those that wait, in the order in which slots are granted."""


def usage_of(native: "_native._Usage") -> Usage:
    return Usage(
        **native["summary"],
        holders=tuple(UsageHolder(**contender, **holder) for contender, holder in native["holders"]),
        waiters=tuple(UsageWaiter(**contender, **waiter) for contender, waiter in native["waiters"]),
    )
