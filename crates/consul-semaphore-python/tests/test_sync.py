"""Slots in threads."""

import logging
import pickle
import signal
import threading
from datetime import timedelta

from consul_semaphore import (
    AcquireTimeoutError,
    ConflictError,
    Consul,
    InvalidSemaphoreError,
    NotFoundError,
    Semaphore,
    SlotLostError,
    Window,
)
from stage import Program, Stage, eventually


class Sync(Stage):
    def test_a_slot_is_held_in_its_block(self) -> None:
        with Semaphore(self.prefix, limit=3).slot(timeout=60) as slot:
            self.assertEqual(self.consul.holders(self.prefix), [slot.session])
            key = self.consul.call("GET", f"kv/{slot.sequencer.lock_key}")[0]
            self.assertEqual((key["Session"], key["LockIndex"]), (slot.session, slot.sequencer.lock_index))
            self.assertEqual(key["ModifyIndex"], slot.fencing_token)
            self.assertEqual(slot.index, 0)
            self.assertFalse(slot.lost)
            self.assertFalse(slot.wait_lost(timeout=0.01))
        self.assertEqual(self.consul.holders(self.prefix), [])
        self.assertEqual(self.consul.contenders(self.prefix), [])

    def test_fencing_tokens_rise(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        tokens = []
        for _ in range(3):
            with semaphore.slot() as slot:
                tokens.append(slot.fencing_token)
        self.assertEqual(tokens, sorted(set(tokens)))

    def test_who_waits_too_long_is_told_who_holds_the_slots(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1, program="first")
        with semaphore.slot():
            for timeout in (0, 0.2, timedelta(seconds=0.2)):
                with self.assertRaises(AcquireTimeoutError) as raised, semaphore.slot(timeout):
                    self.fail("there is none")
                self.assertIsInstance(raised.exception, TimeoutError)
                self.assertRegex(str(raised.exception), f"no slot of {self.prefix} is free: 1 of 1 held, by .*first")
            with self.assertRaises(AcquireTimeoutError), semaphore.try_slot():
                self.fail("there is none")

    def test_a_slot_that_nobody_refers_to_is_given_back(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        slot = semaphore.acquire()
        del slot
        with semaphore.slot(timeout=60):
            pass

    def test_a_slot_is_given_back_once(self) -> None:
        slot = Semaphore(self.prefix, limit=1).acquire()
        slot.release()
        slot.release()
        self.assertFalse(slot.lost)
        self.assertFalse(slot.wait_lost())

    def test_whoever_gives_a_slot_back_is_told_of_its_loss(self) -> None:
        slot = Semaphore(self.prefix, limit=1).acquire()
        self.consul.destroy(slot.session)
        self.assertTrue(slot.wait_lost(timeout=60))
        for _ in range(2):
            with self.assertRaisesRegex(SlotLostError, f"the slot of {self.prefix} is lost"):
                slot.release()

    def test_a_function_is_called_when_a_slot_is_lost(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        calls: list[str] = []
        called = threading.Event()

        def call(name: str) -> None:
            calls.append(name)
            called.set()

        kept = semaphore.acquire()
        kept.on_lost(lambda: call("kept"))
        kept.release()
        slot = semaphore.acquire()
        slot.on_lost(lambda: call("lost"))
        self.consul.destroy(slot.session)
        self.assertTrue(called.wait(60))
        called.clear()
        slot.on_lost(lambda: call("afterwards"))
        self.assertTrue(called.wait(60))
        self.assertEqual(calls, ["lost", "afterwards"])

    def test_a_decorated_function_has_a_slot_in_each_call(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)

        @semaphore.slot(timeout=60)
        def holders(more: int) -> int:
            """It counts them."""
            return len(self.consul.holders(self.prefix)) + more

        self.assertEqual([holders(1), holders(more=2)], [2, 3])
        self.assertEqual((holders.__name__, holders.__doc__), ("holders", "It counts them."))

    def test_the_end_of_a_block_says_that_the_slot_was_lost(self) -> None:
        with self.assertRaisesRegex(SlotLostError, f"the slot of {self.prefix} is lost"):
            with Semaphore(self.prefix, limit=1).slot() as slot:
                self.consul.destroy(slot.session)
                self.assertTrue(slot.wait_lost(timeout=60))
                self.assertTrue(slot.lost)

    def test_what_the_work_raises_counts_for_more(self) -> None:
        with self.assertRaises(KeyError), self.assertLogs("consul_semaphore", logging.WARNING):
            with Semaphore(self.prefix, limit=1).slot() as slot:
                self.consul.destroy(slot.session)
                self.assertTrue(slot.wait_lost(timeout=60))
                raise KeyError

    def test_waiting_keeps_no_other_thread_from_work(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        first = semaphore.acquire()
        got = threading.Event()

        def wait() -> None:
            with semaphore.slot():
                got.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: len(self.consul.contenders(self.prefix)) == 2)
        self.assertFalse(got.is_set())
        first.release()
        waiting.join()
        self.assertTrue(got.is_set())

    def test_several_are_granted_together(self) -> None:
        one, two = f"{self.prefix}/one", f"{self.prefix}/two"
        both = Semaphore(one, limit=1, priority=3) & Semaphore(two, limit=5, slots=2)
        with both.slot(timeout=60) as slot:
            self.assertEqual(len(self.consul.holders(one)), 1)
            self.assertEqual(len(self.consul.holders(two)), 2)
            self.assertEqual(len({of.fencing_token for of in slot.sequencers}), 1)
            self.assertEqual([of.slot_index for of in slot.sequencers], [0, 0, 1])
            with self.assertRaisesRegex(AcquireTimeoutError, one), both.try_slot():
                self.fail("there is none")
        self.assertEqual(self.consul.keys(f"{one}/"), [])

    def test_what_several_have_in_common_is_said_of_one(self) -> None:
        one, two = f"{self.prefix}/one", f"{self.prefix}/two"
        for a, b in [
            (Semaphore(one, limit=1, program="importer"), Semaphore(two, limit=1)),
            (Semaphore(one, limit=1), Semaphore(two, limit=1, program="importer")),
        ]:
            with (a & b).slot(timeout=60):
                for prefix in (one, two):
                    with self.assertRaisesRegex(AcquireTimeoutError, "by .*importer"), Semaphore(prefix, limit=1).try_slot():
                        self.fail("there is none")

    def test_higher_priorities_are_served_first(self) -> None:
        first = Semaphore(self.prefix, limit=1).acquire()
        served = []

        def wait(priority: int) -> None:
            with Semaphore(self.prefix, limit=1, priority=priority).slot():
                served.append(priority)

        threads = []
        for priority in (0, 5):
            threads.append(threading.Thread(target=wait, args=[priority]))
            threads[-1].start()
            eventually(lambda: len(self.consul.contenders(self.prefix)) == len(threads) + 1)
        first.release()
        for thread in threads:
            thread.join()
        self.assertEqual(served, [5, 0])

    def test_a_mutex_is_the_lock_of_consul_lock(self) -> None:
        with Semaphore(self.prefix, mutex=True).slot() as slot:
            key = self.consul.call("GET", f"kv/{self.prefix}/.lock")[0]
            self.assertEqual(key["Session"], slot.session)

    def test_a_rate_holds_nobody_up_at_the_end_of_the_block(self) -> None:
        rate = Semaphore(self.prefix, limit=1, period=3600)
        with rate.slot():
            pass
        with self.assertRaises(AcquireTimeoutError), rate.try_slot():
            self.fail("the period is not over")
        self.rests = True

    def test_a_cooldown_keeps_the_slot(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1, cooldown=1)
        with semaphore.slot():
            pass
        self.assertEqual(len(self.consul.holders(self.prefix)), 1)
        semaphore.all_released()
        self.assertEqual(self.consul.holders(self.prefix), [])

    def test_what_others_say_otherwise_is_a_conflict(self) -> None:
        with Semaphore(self.prefix, limit=2).slot():
            with self.assertRaisesRegex(ConflictError, f"is 2 in Consul, not 3.*Set the limit to 2, or delete"):
                Semaphore(self.prefix, limit=3).acquire()
            with self.assertRaisesRegex(ConflictError, "Build the semaphore with limit"):
                Semaphore(self.prefix, mutex=True).acquire()

    def test_a_prefix_that_must_exist(self) -> None:
        with self.assertRaisesRegex(NotFoundError, f"there is no semaphore at {self.prefix}"):
            Semaphore(self.prefix, limit=1, must_exist=True).acquire()

    def test_what_is_not_possible_is_said_at_once(self) -> None:
        window = Window("0 22 * * *", timedelta(hours=6), "Europe/Nowhere")
        for text, said in [
            ("set at most 5000", {"limit": 5001}),
            ("out of range", {"limit": -1}),
            ("at least 1", {"limit": 0}),
            ("has no limit", {}),
            ("ttl is 1s: set whole seconds, from 10 to 86400", {"limit": 1, "ttl": 1}),
            ("cooldown is NaN", {"limit": 1, "cooldown": float("nan")}),
            ("time zone", {"limit": 1, "windows": [window]}),
            ("at most 0 slots", {"limit": 1, "reserve": (1, 10)}),
        ]:
            with self.subTest(text), self.assertRaisesRegex(InvalidSemaphoreError, text) as raised:
                Semaphore(self.prefix, **said)  # type: ignore[arg-type]
            self.assertIsInstance(raised.exception, ValueError)
        with self.assertRaisesRegex(InvalidSemaphoreError, "prefix .* is not valid"):
            Semaphore("/db/", limit=1)
        # Of the two 60 is what it is if nobody says anything.
        for ttl in (20, 60):
            with self.assertRaisesRegex(InvalidSemaphoreError, "ttl: .* in common"):
                Semaphore("a", limit=1, ttl=ttl) & Semaphore("b", limit=1, ttl=30)
        with self.assertRaisesRegex(InvalidSemaphoreError, "named twice"):
            Semaphore("a", limit=1) & Semaphore("a", limit=1)

    def test_a_request_is_for_one_block(self) -> None:
        request = Semaphore(self.prefix, limit=1).slot()
        with request:
            pass
        with self.assertRaisesRegex(RuntimeError, "call slot"), request:
            pass

    def test_who_waits_is_logged(self) -> None:
        semaphore = Semaphore(self.prefix, limit=1)
        with semaphore.slot(), self.assertLogs("consul_semaphore", logging.INFO) as logs:
            with self.assertRaises(AcquireTimeoutError):
                semaphore.acquire(timeout=0.5)
            # Logs have a thread of their own. So the grant of the first slot may be logged in here too.
            text = f"waiting: no slot of {self.prefix} is free: 1 of 1 held"
            eventually(lambda: any(text in line for line in logs.output))

    def test_ctrl_c_ends_the_wait(self) -> None:
        program = """
            import sys
            from consul_semaphore import Semaphore
            semaphore = Semaphore(sys.argv[1], limit=1)
            print("waits", flush=True)
            try:
                with semaphore.slot():
                    print("got it")
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                sys.stdin.read()
        """
        with Semaphore(self.prefix, limit=1).slot():
            waiting = Program(program, self.prefix)
            self.assertEqual(waiting.line(), "waits")
            eventually(lambda: len(self.consul.contenders(self.prefix)) == 2)
            waiting.process.send_signal(signal.SIGINT)
            self.assertEqual(waiting.line(), "interrupted")
            # It has left the queue while the program goes on.
            eventually(lambda: len(self.consul.contenders(self.prefix)) == 1)
            self.assertEqual(waiting.ended(), (0, "", ""))

    def test_ctrl_c_in_the_block_gives_the_slot_back(self) -> None:
        program = """
            import sys, threading
            from consul_semaphore import Semaphore
            with Semaphore(sys.argv[1], limit=1).slot():
                print("holds", flush=True)
                threading.Event().wait()
        """
        holding = Program(program, self.prefix)
        self.assertEqual(holding.line(), "holds")
        holding.process.send_signal(signal.SIGINT)
        self.assertEqual(holding.ended()[0], -signal.SIGINT)
        self.assertEqual(self.consul.holders(self.prefix), [])

    def test_a_program_that_ends_gives_back_what_it_has(self) -> None:
        program = """
            import sys, threading
            from consul_semaphore import Semaphore
            semaphore = Semaphore(sys.argv[1], limit=1)
            def hold():
                slot = semaphore.acquire()
                print("holds", flush=True)
                threading.Event().wait()
            # What such threads have is not freed when Python ends.
            for _ in range(2):
                threading.Thread(target=hold, daemon=True).start()
            sys.stdin.read()
        """
        holding = Program(program, self.prefix)
        self.assertEqual(holding.line(), "holds")
        eventually(lambda: len(self.consul.contenders(self.prefix)) == 2)
        self.assertEqual(holding.ended()[0], 0)
        self.assertEqual(self.consul.contenders(self.prefix), [])

    def test_what_runs_after_the_end_is_told_so(self) -> None:
        program = """
            import atexit, sys
            def early():
                slot.release()
                assert not slot.lost
                other = lambda: Semaphore(sys.argv[1], limit=2)
                for begin in (semaphore.acquire, semaphore.usage, slot.wait_lost, semaphore.all_released, other):
                    try:
                        begin()
                    except SemaphoreError as error:
                        print(error)
            atexit.register(early)
            from consul_semaphore import Semaphore, SemaphoreError
            semaphore = Semaphore(sys.argv[1], limit=1)
            slot = semaphore.acquire()
        """
        self.assertEqual(Program(program, self.prefix).ended(), (0, "the program ends\n" * 5, ""))

    def test_nobody_gets_a_slot_while_the_program_ends(self) -> None:
        program = """
            import atexit, random, sys, threading, time
            def early():
                # All of them are given back, otherwise this would fail.
                for slot in slots:
                    slot.release()
            atexit.register(early)
            from consul_semaphore import Semaphore, SemaphoreError
            semaphore = Semaphore(sys.argv[1], limit=5000)
            slots = []
            first = threading.Event()
            def work():
                try:
                    while True:
                        slots.append(semaphore.acquire())
                        first.set()
                except SemaphoreError:
                    pass
            for _ in range(8):
                threading.Thread(target=work, daemon=True).start()
            first.wait()
            time.sleep(random.random() / 10)
        """
        for ending in [Program(program, f"{self.prefix}/{of}") for of in range(8)]:
            self.assertEqual(ending.ended(), (0, "", ""))

    def test_the_first_semaphore_may_come_too_late(self) -> None:
        program = """
            import atexit, sys
            def early():
                try:
                    Semaphore(sys.argv[1], limit=1)
                except SemaphoreError as error:
                    print(error)
            atexit.register(early)
            from consul_semaphore import Semaphore, SemaphoreError
        """
        self.assertEqual(Program(program, self.prefix).ended(), (0, "the program ends\n", ""))

    def test_a_generator_that_holds_a_slot_may_be_closed_last(self) -> None:
        program = """
            import sys
            from consul_semaphore import Semaphore
            def work():
                with Semaphore(sys.argv[1], limit=1).slot():
                    try:
                        yield
                    finally:
                        print("closed")
            working = work()
            next(working)
        """
        self.assertEqual(Program(program, self.prefix).ended(), (0, "closed\n", ""))

    def test_a_work_that_keeps_all_threads_from_python_keeps_its_slot(self) -> None:
        program = """
            import ctypes, sys
            from consul_semaphore import Semaphore
            with Semaphore(sys.argv[1], limit=1, ttl=10).slot() as slot:
                # It does not release the GIL.
                ctypes.PyDLL(None).sleep(12)
                assert not slot.lost
        """
        self.assertEqual(Program(program, self.prefix).ended(), (0, "", ""))


class Processes(Stage):
    def test_the_limit_holds_among_processes(self) -> None:
        program = """
            import sys, time
            from consul_semaphore import Semaphore
            semaphore = Semaphore(sys.argv[1], limit=2)
            for round in range(5):
                with semaphore.slot():
                    print(time.time(), 1)
                    if round == 0:
                        sys.stdin.read()
                    time.sleep(0.01)
                    print(time.time(), -1)
        """
        programs = [Program(program, self.prefix) for _ in range(3)]
        eventually(lambda: len(self.consul.contenders(self.prefix)) == 3 and len(self.consul.holders(self.prefix)) == 2)
        for each in programs:
            each.end_input()
        changes = []
        for each in programs:
            code, out, err = each.ended()
            self.assertEqual((code, err), (0, ""))
            changes += [(float(at), int(change)) for at, change in (line.split() for line in out.splitlines())]
        self.assertEqual(len(changes), 30)
        held = 0
        for _, change in sorted(changes):
            held += change
            self.assertLessEqual(held, 2)

    def test_a_child_that_was_forked_takes_slots_of_its_own(self) -> None:
        program = """
            import os, sys, warnings
            from consul_semaphore import Semaphore, SemaphoreError
            semaphore = Semaphore(sys.argv[1], limit=2)
            with semaphore.slot() as slot:
                with warnings.catch_warnings():
                    # Python warns of threads at a fork, also of those that are none of its own.
                    warnings.simplefilter("ignore")
                    child = os.fork()
                if child == 0:
                    with semaphore.slot() as other:
                        assert other.session != slot.session
                    try:
                        slot.lost
                    except SemaphoreError as error:
                        assert "forked" in str(error), error
                    else:
                        raise AssertionError
                else:
                    assert os.waitpid(child, 0)[1] == 0
                    assert not slot.lost
        """
        code, out, err = Program(program, self.prefix).ended()
        self.assertEqual((code, out), (0, ""), err)

    def test_processes_of_multiprocessing_share_a_semaphore(self) -> None:
        program = """
            import multiprocessing, sys, warnings
            from consul_semaphore import Semaphore
            warnings.simplefilter("ignore")
            semaphore = Semaphore(sys.argv[1], limit=1)
            def token(_):
                with semaphore.slot() as slot:
                    return slot.fencing_token
            with semaphore.slot():
                pass
            with multiprocessing.get_context("fork").Pool(3) as pool:
                print(len(set(pool.map(token, range(6)))))
        """
        self.assertEqual(Program(program, self.prefix).ended(), (0, "6\n", ""))

    def test_a_process_of_multiprocessing_gives_back_what_it_has(self) -> None:
        for method in ("fork", "forkserver", "spawn"):
            with self.subTest(method):
                self.assertEqual(self.in_child(method, "hold"), (0, "", ""))
                self.assertEqual(self.consul.holders(self.prefix), [])

    def test_another_process_has_the_same_semaphore(self) -> None:
        window = Window("* * * * *", timedelta(minutes=1))
        one = Semaphore(f"{self.prefix}/one", limit=2, slots=2, windows=[window], consul=Consul(datacenter="dc1"))
        same = pickle.loads(pickle.dumps(one))
        self.assertEqual(same._parts, one._parts)
        two = Semaphore(f"{self.prefix}/two", limit=1, program="importer")
        both = pickle.loads(pickle.dumps(two & Semaphore(f"{self.prefix}/three", limit=1)))
        # That of the environment is the same in all of a process.
        four = both & Semaphore(f"{self.prefix}/four", limit=1)
        with same.slot(timeout=60), four.slot(timeout=60):
            self.assertEqual(len(self.consul.holders(f"{self.prefix}/one")), 2)
            with self.assertRaisesRegex(AcquireTimeoutError, "by .*importer"), two.try_slot():
                self.fail("there is none")

    def test_a_thread_outlasts_the_main_one_of_its_process_in_its_slot(self) -> None:
        for method in ("fork", "forkserver", "spawn"):
            with self.subTest(method):
                code, out, err = self.in_child(method, "outlast")
                self.assertEqual((code, err), (0, ""))
                self.assertRegex(out, "1 of 1 held")

    def in_child(self, method: str, what: str) -> tuple[int, str, str]:
        """What a program says whose child does this with its semaphore."""
        program = """
            import multiprocessing, sys, warnings
            import children
            from consul_semaphore import Semaphore
            warnings.simplefilter("ignore")
            prefix, method, what = sys.argv[1:]
            semaphore = Semaphore(prefix, limit=1)
            child = multiprocessing.get_context(method).Process(target=getattr(children, what), args=[semaphore])
            child.start()
            child.join()
            sys.exit(child.exitcode)
        """
        return Program(program, self.prefix, method, what).ended()
