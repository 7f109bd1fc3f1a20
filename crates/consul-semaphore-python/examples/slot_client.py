"""Takes a slot again and again, among other programs: slot_client.py HOST PREFIX LIMIT HOLD REST TIMES

It holds each slot for HOLD ms, and waits for REST ms before the next one, TIMES times, or until SIGTERM if that is 0. It
prints `granted N after T ms` and `released N`, and anything else is an error. `make interop` runs it.
"""

import signal
import sys
import time
from itertools import count
from types import FrameType
from typing import Optional

from consul_semaphore import Semaphore


def main(host: str, prefix: str, limit: int, hold: int, rest: int, times: int) -> None:
    semaphore = Semaphore(prefix, limit=limit, host=host)
    for number in range(1, times + 1) if times else count(1):
        asked = time.monotonic()
        with semaphore.slot():
            print(f"granted {number} after {(time.monotonic() - asked) * 1000:.0f} ms", flush=True)
            time.sleep(hold / 1000)
        print(f"released {number}", flush=True)
        time.sleep(rest / 1000)


def end(_number: int, _frame: Optional[FrameType]) -> None:
    """What it waits for, or has, is given up."""
    sys.exit()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    host, prefix, *numbers = sys.argv[1:]
    limit, hold, rest, times = map(int, numbers)
    main(host, prefix, limit, hold, rest, times)
