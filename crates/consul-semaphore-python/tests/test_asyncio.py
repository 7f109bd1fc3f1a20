"""Slots in asyncio."""

import asyncio
import logging
import sys
import threading
import time
import unittest

from consul_semaphore import AcquireTimeoutError, Semaphore, SlotLostError
from stage import PATIENCE, Stage, eventually


async def forever() -> None:
    """Until it is cancelled, as it must be."""
    await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)


class Asyncio(Stage, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        # Some tests block the loop, which is nothing to be told.
        asyncio.get_running_loop().slow_callback_duration = 60

    async def eventually_contend(self, count: int) -> None:
        await asyncio.to_thread(eventually, lambda: len(self.consul.contenders(self.prefix)) == count)

    async def test_the_same_request_works_in_asyncio(self) -> None:
        async with Semaphore(self.prefix, limit=3).slot(timeout=60) as slot:
            self.assertEqual(self.consul.holders(self.prefix), [slot.session])
            self.assertFalse(slot.lost)
        self.assertEqual(self.consul.contenders(self.prefix), [])

    async def test_who_waits_too_long_is_told_so(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        async with semaphore.slot():
            for timeout in (0, 0.2):
                with self.assertRaises(AcquireTimeoutError):
                    async with semaphore.slot(timeout):
                        self.fail("there is none")

    async def test_tasks_keep_to_the_limit(self) -> None:
        semaphore = Semaphore(self.prefix, limit=2)
        held = most = 0

        async def work() -> None:
            nonlocal held, most
            async with semaphore.slot():
                held += 1
                most = max(most, held)
                while most < 2:
                    await asyncio.sleep(0.01)
                held -= 1

        await asyncio.gather(*[work() for _ in range(8)])
        self.assertEqual(most, 2)

    async def test_a_cancelled_task_leaves_the_queue(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        async with semaphore.slot():
            waiting = asyncio.create_task(semaphore.acquire_async())
            await self.eventually_contend(2)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await self.eventually_contend(1)

    async def test_a_cancelled_task_gives_its_slot_back(self) -> None:
        async def work() -> None:
            async with Semaphore(self.prefix, limit=1).slot():
                await forever()

        working = asyncio.create_task(work())
        await self.eventually_contend(1)
        working.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await working
        await self.eventually_contend(0)

    async def test_a_task_that_is_cancelled_at_its_grant_gives_the_slot_back(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        for pause in range(12):
            waiting = asyncio.create_task(semaphore.acquire_async())
            await asyncio.sleep(pause / 1000)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            del waiting
            async with semaphore.slot(timeout=60):
                pass

    async def test_a_slot_whose_task_is_cancelled_at_its_grant_does_not_cool_down(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1, cooldown=3600)
        waiting = asyncio.create_task(semaphore.acquire_async())
        await asyncio.sleep(0)
        # The loop is blocked until the outcome has come, so that the cancellation comes after it.
        eventually(lambda: self.consul.holders(self.prefix))
        time.sleep(0.5)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        del waiting
        await self.eventually_contend(0)

    async def test_a_decorated_coroutine_has_a_slot_in_each_call(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)

        @semaphore.slot()
        async def work(destroys: bool) -> int:
            (session,) = self.consul.holders(self.prefix)
            if destroys:
                self.consul.destroy(session)
                await forever()
            return 1

        self.assertEqual([await work(False), await work(False)], [1, 1])
        with self.assertRaises(SlotLostError):
            await work(True)

    async def test_a_lost_slot_ends_its_block(self) -> None:
        with self.assertRaisesRegex(SlotLostError, f"the slot of {self.prefix} is lost"):
            async with Semaphore(self.prefix, limit=1).slot() as slot:
                self.consul.destroy(slot.session)
                await forever()
        # The task was not cancelled by others: it goes on.
        task = asyncio.current_task()
        assert task is not None
        if hasattr(task, "cancelling"):
            self.assertEqual(task.cancelling(), 0)
        await asyncio.sleep(0)

    async def test_a_block_that_ends_just_when_its_slot_is_lost_says_so(self) -> None:
        with self.assertRaises(SlotLostError):
            async with Semaphore(self.prefix, limit=1).slot() as slot:
                self.consul.destroy(slot.session)
                # It blocks the loop, so that the cancellation comes when the block is over.
                self.assertTrue(slot.wait_lost(timeout=60))
        await asyncio.sleep(0)

    async def test_a_block_that_ends_just_before_its_cancellation_says_so(self) -> None:
        with self.assertRaises(SlotLostError):
            async with Semaphore(self.prefix, limit=1).slot() as slot:
                self.consul.destroy(slot.session)
                # Who waits second is told after the watch. Then the loop has the loss, and plans the cancellation.
                for _ in range(2):
                    self.assertTrue(slot.wait_lost(timeout=60))
                await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def test_a_log_that_blocks_does_not_delay_the_loss(self) -> None:
        logs, go_on = threading.Event(), threading.Event()
        went_on = []

        class Blocks(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                logs.set()
                went_on.append(go_on.wait(PATIENCE))

        logger, handler = logging.getLogger("consul_semaphore"), Blocks()
        self.addCleanup(logger.setLevel, logger.level)
        self.addCleanup(logger.removeHandler, handler)
        self.addCleanup(go_on.set)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
        with self.assertRaises(SlotLostError):
            async with Semaphore(self.prefix, limit=1).slot() as slot:
                # Its grant is logged.
                self.assertTrue(await asyncio.to_thread(logs.wait, PATIENCE))
                self.consul.destroy(slot.session)
                await forever()
        self.assertEqual(went_on, [])

    async def test_what_the_work_raises_when_it_is_ended_counts_for_more(self) -> None:
        with self.assertRaises(KeyError), self.assertLogs("consul_semaphore"):
            async with Semaphore(self.prefix, limit=1).slot() as slot:
                self.consul.destroy(slot.session)
                try:
                    await forever()
                except asyncio.CancelledError:
                    raise KeyError from None

    @unittest.skipIf(sys.version_info < (3, 11), "a task does not count how often it is cancelled")
    async def test_who_cancels_beside_the_loss_is_obeyed(self) -> None:
        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            async with Semaphore(self.prefix, limit=1).slot() as slot:
                self.consul.destroy(slot.session)
                try:
                    await forever()
                except asyncio.CancelledError:
                    task.cancel()
                    raise

        with self.assertRaises(asyncio.CancelledError), self.assertLogs("consul_semaphore"):
            await asyncio.create_task(work())

    async def test_the_loss_can_be_waited_for(self) -> None:
        slot = await Semaphore(self.prefix, limit=1).acquire_async()
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(slot.wait_lost_async(), 0.05)
        lost = asyncio.create_task(slot.wait_lost_async())
        self.consul.destroy(slot.session)
        self.assertTrue(await lost)
        with self.assertRaises(SlotLostError):
            await slot.release_async()

    async def test_a_release_goes_on_when_its_task_is_cancelled(self) -> None:
        slot = await Semaphore(self.prefix, limit=1).acquire_async()
        self.consul.destroy(slot.session)
        self.assertTrue(await slot.wait_lost_async())
        first = asyncio.create_task(slot.release_async())
        await asyncio.sleep(0)
        first.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await first
        # It waits for the first one, and is told the same.
        with self.assertRaises(SlotLostError):
            await slot.release_async()

    async def test_who_waits_for_the_loss_is_told_that_there_is_none(self) -> None:
        slot = await Semaphore(self.prefix, limit=1).acquire_async()
        lost = asyncio.create_task(slot.wait_lost_async())
        await asyncio.sleep(0)
        await slot.release_async()
        self.assertFalse(await lost)

    async def test_slots_that_rest_can_be_waited_for(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1, cooldown=1)
        async with semaphore.slot():
            pass
        await semaphore.all_released_async()
        self.assertEqual(self.consul.holders(self.prefix), [])
