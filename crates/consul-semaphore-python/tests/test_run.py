"""Work that runs in a slot."""

import asyncio
import inspect
import unittest
from collections.abc import Coroutine
from typing import Any, Optional, cast

from consul_semaphore import AcquireTimeoutError, Semaphore, Slot, SlotLostError
from stage import PATIENCE, Stage, eventually


class Run(Stage, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        # Without a lock-delay, the slot of a destroyed session is free at once.
        self.semaphore = Semaphore(self.prefix, limit=1, lock_delay=0)
        self.begun = asyncio.Event()
        self.ended: Optional[BaseException] = None

    async def until_it_is_ended(self, slot: Optional[Slot] = None) -> None:
        """Work that says when it begins, and by which exception it ends."""
        self.begun.set()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)
        except BaseException as error:
            self.ended = error
            raise

    async def begin(self, work: Coroutine[Any, Any, object]) -> "asyncio.Task[object]":
        running = asyncio.create_task(work)
        await asyncio.wait_for(self.begun.wait(), PATIENCE)
        return running

    async def eventually_contend(self, count: int) -> None:
        await asyncio.to_thread(eventually, lambda: len(self.consul.contenders(self.prefix)) == count)

    async def test_a_function_gets_the_slot_and_returns_a_result(self) -> None:
        async def work(slot: Slot) -> tuple[str, list[str]]:
            return slot.session, self.consul.holders(self.prefix)

        session, holders = await self.semaphore.run(work, timeout=PATIENCE)
        self.assertEqual([session], holders)
        self.assertEqual(self.consul.contenders(self.prefix), [])

    async def test_a_coroutine_begins_once_there_is_a_slot(self) -> None:
        async def holders() -> int:
            return len(self.consul.holders(self.prefix))

        self.assertEqual(await self.semaphore.run(holders()), 1)

    async def test_an_error_of_the_work_is_raised(self) -> None:
        async def fail() -> None:
            raise KeyError("no such step")

        with self.assertRaisesRegex(KeyError, "no such step"):
            await self.semaphore.run(fail())
        self.assertEqual(self.consul.contenders(self.prefix), [])

    async def test_work_whose_session_is_destroyed_is_cancelled(self) -> None:
        for work in (self.until_it_is_ended, self.until_it_is_ended()):
            self.begun.clear()
            self.ended = None
            running = await self.begin(self.semaphore.run(work))
            [session] = self.consul.holders(self.prefix)
            self.consul.destroy(session)
            with self.assertRaisesRegex(SlotLostError, f"the slot of {self.prefix} is lost"):
                await running
            self.assertIsInstance(self.ended, asyncio.CancelledError)

    async def test_the_caller_goes_on_after_a_loss(self) -> None:
        async def lose(slot: Slot) -> None:
            self.consul.destroy(slot.session)
            await self.until_it_is_ended()

        with self.assertRaises(SlotLostError):
            await self.semaphore.run(lose)
        # No cancellation is left in the task, which takes the next slot.
        self.assertEqual(await self.semaphore.run(asyncio.sleep(0, "next")), "next")

    async def test_a_cancelled_caller_cancels_the_work_and_releases_the_slot(self) -> None:
        running = await self.begin(self.semaphore.run(self.until_it_is_ended))
        self.assertEqual(len(self.consul.holders(self.prefix)), 1)
        running.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await running
        self.assertIsInstance(self.ended, asyncio.CancelledError)
        await self.eventually_contend(0)

    async def test_a_timeout_of_the_caller_is_a_timeout(self) -> None:
        running = await self.begin(self.semaphore.run(self.until_it_is_ended))
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(running, 0.01)
        self.assertIsInstance(self.ended, asyncio.CancelledError)
        await self.eventually_contend(0)

    async def test_work_without_a_slot_does_not_begin(self) -> None:
        async with self.semaphore.slot():
            work = self.until_it_is_ended()
            with self.assertRaises(AcquireTimeoutError):
                await self.semaphore.run(work, timeout=0)
            self.assertEqual(inspect.getcoroutinestate(work), inspect.CORO_CLOSED)

            work = self.until_it_is_ended()
            waiting = asyncio.create_task(self.semaphore.run(work))
            await self.eventually_contend(2)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            self.assertEqual(inspect.getcoroutinestate(work), inspect.CORO_CLOSED)
            await self.eventually_contend(1)
        self.assertFalse(self.begun.is_set())

    async def test_what_runs_already_is_refused(self) -> None:
        task = asyncio.create_task(asyncio.sleep(0))
        with self.assertRaisesRegex(TypeError, "not a .*Task"):
            await self.semaphore.run(cast("Coroutine[Any, Any, None]", task))
        await task

    async def test_slots_of_several_semaphores(self) -> None:
        both = self.semaphore & Semaphore(f"{self.prefix}/two", limit=5, slots=2)

        async def count(slot: Slot) -> int:
            return len(slot.sequencers)

        self.assertEqual(await both.run(count), 3)
