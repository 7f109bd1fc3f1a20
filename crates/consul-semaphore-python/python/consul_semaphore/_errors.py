"""What can go wrong. The text of each error says what to do."""


class SemaphoreError(Exception):
    """Something about a semaphore or a slot went wrong."""


class InvalidSemaphoreError(SemaphoreError, ValueError):
    """The semaphore, or how to reach Consul, can't be as was asked. The text says what is allowed."""


class AcquireTimeoutError(SemaphoreError, TimeoutError):
    """There was no slot in time. The text says who holds them, or that Consul can't be reached."""


class UnreachableError(SemaphoreError, ConnectionError):
    """Consul does not answer, or has no leader. A call that waits for a slot tries again until its timeout instead."""


class RefusedError(SemaphoreError):
    """Consul refuses. The text says which rules a token lacks."""


class NotFoundError(SemaphoreError, LookupError):
    """Nobody uses the prefix, and `must_exist` is set."""


class ConflictError(SemaphoreError):
    """Others use the prefix with another limit, or for something else."""


class SlotLostError(SemaphoreError):
    """The slot was lost while it was used. Others may have it."""


class StillHeldError(SemaphoreError):
    """The slot could not be given back: the text says why. It is free once its session has expired."""
