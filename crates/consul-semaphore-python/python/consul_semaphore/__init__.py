"""Distributed semaphores in Consul: at most so many programs at a time do something, on however many machines.

    from consul_semaphore import Semaphore

    with Semaphore("locks/db", limit=3).slot(timeout=60) as slot:
        migrate(slot.fencing_token)

In asyncio it is `async with`, or `await semaphore.run(work)`. Consul is found by its own environment variables, such as
CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN; `Consul` has the others.

Errors are subclasses of `SemaphoreError`, and say what to do. What happens while a program waits is logged by the logger
`consul_semaphore`.
"""

from consul_semaphore._consul import Consul
from consul_semaphore._errors import (
    AcquireTimeoutError,
    ConflictError,
    InvalidSemaphoreError,
    NotFoundError,
    RefusedError,
    SemaphoreError,
    SlotLostError,
    StillHeldError,
    UnreachableError,
)
from consul_semaphore._semaphore import Semaphore, Window
from consul_semaphore._slot import Sequencer, Slot, SlotRequest
from consul_semaphore._usage import Usage, UsageContender, UsageHolder, UsageWaiter

__all__ = [
    "AcquireTimeoutError",
    "ConflictError",
    "Consul",
    "InvalidSemaphoreError",
    "NotFoundError",
    "RefusedError",
    "Semaphore",
    "SemaphoreError",
    "Sequencer",
    "Slot",
    "SlotLostError",
    "SlotRequest",
    "StillHeldError",
    "UnreachableError",
    "Usage",
    "UsageContender",
    "UsageHolder",
    "UsageWaiter",
    "Window",
]
