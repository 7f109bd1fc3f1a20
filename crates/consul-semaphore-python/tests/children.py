"""What processes of multiprocessing do, which find it by the name of this module."""

import threading
from concurrent.futures import ThreadPoolExecutor

from consul_semaphore import Semaphore, SemaphoreError

kept: list[object] = []
"""What a process has until its end."""


def hold(semaphore: Semaphore) -> None:
    """Takes a slot in a thread of a pool, which ends only when Python does, and leaves it."""
    pool = ThreadPoolExecutor(1)
    kept.extend((pool, pool.submit(semaphore.acquire, 60).result()))


def outlast(semaphore: Semaphore) -> None:
    """Leaves a thread that works in a slot, and asks for another one when the main thread is at its end."""

    def work() -> None:
        with semaphore.slot(timeout=60):
            threading.main_thread().join()
            try:
                semaphore.acquire(timeout=0)
            except SemaphoreError as error:
                print(error, flush=True)

    threading.Thread(target=work).start()
