"""Who uses a semaphore."""

import asyncio
import dataclasses
import threading
import unittest
from datetime import datetime, timedelta, timezone

from consul_semaphore import Consul, Semaphore, UnreachableError, Usage
from stage import Stage, eventually

SEMAPHORE_FLAGS = 0xE0F69A2BAA414DE0
"""The flags of the keys of a semaphore, which Consul's own tools set."""


class InUse(Stage):
    def setUp(self) -> None:
        super().setUp()
        self.sessions: list[str] = []

    def tearDown(self) -> None:
        for session in self.sessions:
            self.consul.destroy(session)
        super().tearDown()

    def usage(self) -> Usage:
        [usage] = Semaphore(self.prefix, limit=1).usage()
        return usage

    def contend(self, body: object) -> None:
        """Joins the queue with this body, as any program that may write there can."""
        session = self.consul.call("PUT", "session/create", {"TTL": "3600s", "Behavior": "delete"})["ID"]
        self.sessions.append(session)
        key = f"kv/{self.prefix}/{session}?acquire={session}&flags={SEMAPHORE_FLAGS}"
        self.assertTrue(self.consul.call("PUT", key, body))

    def test_a_prefix_that_nobody_uses(self) -> None:
        usage = self.usage()
        self.assertEqual((usage.prefix, usage.kind), (self.prefix, "semaphore"))
        self.assertEqual((usage.limit, usage.free, usage.held, usage.waiting), (None, None, 0, 0))
        self.assertEqual((usage.holders, usage.waiters, usage.problem), ((), (), None))

    def test_a_holder_and_a_waiter(self) -> None:
        urgent = Semaphore(self.prefix, limit=1, priority=7, host="ci-8", program="urgent")
        waiting = threading.Thread(target=lambda: urgent.acquire().release())
        with Semaphore(self.prefix, limit=1, host="ci-7", program="migrate").slot() as slot:
            waiting.start()
            eventually(lambda: self.usage().waiting == 1)
            usage = self.usage()
        waiting.join()
        self.assertEqual((usage.limit, usage.held, usage.free), (1, 1, 0))
        [holder], [waiter] = usage.holders, usage.waiters
        self.assertEqual((holder.session, holder.fencing_token), (slot.session, slot.fencing_token))
        self.assertEqual((holder.slot_index, holder.slot_name, holder.dead, holder.never_expires), (0, None, False, False))
        self.assertEqual((holder.kind, holder.name, holder.where), ("Program", "migrate", "ci-7"))
        self.assertEqual((str(holder), str(waiter)), ("Program migrate on ci-7", "Program urgent on ci-8"))
        self.assertEqual((waiter.priority, waiter.slots), (7, 1))
        for contender in (holder, waiter):
            self.assertIsInstance(contender.since, datetime)
            self.assertEqual(contender.since and contender.since.tzinfo, timezone.utc)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            usage.held = 2  # type: ignore[misc]

    def test_each_of_several_semaphores(self) -> None:
        one, two = f"{self.prefix}/one", f"{self.prefix}/two"
        both = Semaphore(one, limit=1) & Semaphore(two, limit=5, slots=2)
        with both.slot():
            usages = both.usage()
        self.assertEqual([(of.prefix, of.held, of.free) for of in usages], [(one, 1, 0), (two, 2, 3)])

    def test_a_mutex_hides_who_waits(self) -> None:
        mutex = Semaphore(self.prefix, mutex=True)
        with mutex.slot() as slot:
            [usage] = mutex.usage()
        self.assertEqual((usage.kind, usage.limit, usage.free, usage.waiting), ("mutex", 1, 0, None))
        self.assertEqual([holder.session for holder in usage.holders], [slot.session])

    def test_a_rate_has_a_period(self) -> None:
        with Semaphore(self.prefix, limit=2, period=timedelta(hours=1)).slot():
            usage = self.usage()
        self.assertEqual((usage.kind, usage.period_seconds, usage.free), ("rate", 3600, 1))
        self.rests = True

    def test_a_slot_that_cools_down(self) -> None:
        with Semaphore(self.prefix, limit=1, cooldown=3600).slot():
            [holder] = self.usage().holders
            self.assertIsNone(holder.cools_until)
            granted = holder.since
        eventually(lambda: self.usage().holders[0].cools_until)
        [holder] = self.usage().holders
        assert granted is not None and holder.cools_until is not None
        self.assertGreater(holder.cools_until, granted)
        self.rests = True

    def test_a_lock_key_that_is_used_for_something_else(self) -> None:
        self.consul.call("PUT", f"kv/{self.prefix}/.lock", "something else")
        usage = self.usage()
        self.consul.call("DELETE", f"kv/{self.prefix}/.lock")
        self.assertEqual((usage.kind, usage.limit, usage.free), ("unreadable", None, None))
        self.assertTrue(usage.problem)

    def test_whatever_others_write_can_be_read(self) -> None:
        said = {"cluster": "eu", "clusterId": "c", "kind": "Job", "namespace": "batch", "semaphore": "db", "uid": "u"}
        before_christ = "-000100-01-01T00:00:00Z"
        claim = {"priority": 0, "since": before_christ}
        self.contend({**said, "name": "a\x1b[2J\nb", "time": before_christ, "waiting": claim})
        self.contend(["nobody"])
        usage = self.usage()
        named = next(waiter for waiter in usage.waiters if waiter.kind == "Job")
        self.assertEqual(usage.waiting, 2)
        self.assertIsNone(named.since)
        self.assertTrue(named.name.startswith("batch/a"))
        self.assertTrue(named.name.isprintable(), named.name)

    def test_nobody_answers(self) -> None:
        with self.assertRaises(UnreachableError):
            Semaphore("db", limit=1, consul=Consul("127.0.0.1:1")).usage()


class InUseInAsyncio(Stage, unittest.IsolatedAsyncioTestCase):
    async def test_a_holder_and_a_waiter(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        slot = await semaphore.acquire_async()
        waiting = asyncio.create_task(semaphore.acquire_async())
        await asyncio.to_thread(eventually, lambda: len(self.consul.contenders(self.prefix)) == 2)
        [usage] = await semaphore.usage_async()
        self.assertEqual([holder.session for holder in usage.holders], [slot.session])
        self.assertEqual((usage.waiting, len(usage.waiters)), (1, 1))
        await slot.release_async()
        await (await waiting).release_async()
