"""How Consul is reached, and programs of others."""

import contextlib
import io
import logging
import os
import pickle
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from consul_semaphore import (
    AcquireTimeoutError,
    Consul,
    InvalidSemaphoreError,
    RefusedError,
    Semaphore,
    UnreachableError,
)
from stage import SERVERS, Stage, consul, eventually
from stage import Consul as Agent

MANAGEMENT = "5f3b1c9e-0000-4000-8000-000000000001"


class Others(Stage):
    def test_consul_lock_and_python_share_a_prefix(self) -> None:
        semaphore = Semaphore(self.prefix, limit=2)
        lock = [str(SERVERS / "consul"), "lock", "-n", "2", "-shell=false", self.prefix, "sleep", "3600"]
        with subprocess.Popen(lock, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
            eventually(lambda: len(self.consul.holders(self.prefix)) == 1)
            with semaphore.slot(timeout=60) as slot:
                self.assertIn(slot.session, self.consul.holders(self.prefix))
                with self.assertRaisesRegex(AcquireTimeoutError, "2 of 2 held"), semaphore.slot(timeout=0.5):
                    self.fail("consul lock has the other one")
            other.terminate()
        with (Semaphore(self.prefix, limit=2, slots=2)).slot(timeout=60):
            pass


class Access(unittest.TestCase):
    agent: Agent

    @classmethod
    def setUpClass(cls) -> None:
        consul()
        acl = f'acl {{ enabled = true default_policy = "deny" tokens {{ initial_management = "{MANAGEMENT}" }} }}'
        cls.agent = Agent(acl)
        cls.addClassCleanup(cls.agent.stop)
        eventually(lambda: cls.agent.call("GET", "acl/tokens", token=MANAGEMENT))

    def token(self, rules: str) -> str:
        name = str(self.id()).rsplit(".", 1)[-1]
        self.agent.call("PUT", "acl/policy", {"Name": name, "Rules": rules}, MANAGEMENT)
        made = self.agent.call("PUT", "acl/token", {"Policies": [{"Name": name}]}, MANAGEMENT)
        return str(made["SecretID"])

    def semaphore(self, consul: Consul) -> Semaphore:
        return Semaphore("team/db", limit=1, node="team-a", consul=consul)

    def test_a_token_with_the_rules_suffices(self) -> None:
        owner = '"team-a" { policy = "write" }'
        token = self.token(f'key_prefix "team/db/" {{ policy = "write" }} node {owner} session {owner}')
        with self.semaphore(Consul(self.agent.address, token=token)).slot(timeout=60) as slot:
            session = self.agent.call("GET", f"session/info/{slot.session}", token=MANAGEMENT)[0]
            self.assertEqual(session["Node"], "team-a")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(token)
            file.flush()
            there = {"CONSUL_HTTP_ADDR": self.agent.address, "CONSUL_HTTP_TOKEN_FILE": file.name}
            with mock.patch.dict(os.environ, there):
                by_environment = Consul()
                with_another_token = Consul(token="e2f3a0c4-0000-4000-8000-000000000000")
            with self.semaphore(by_environment).slot(timeout=60):
                pass
            with self.assertRaisesRegex(RefusedError, "does not know the token"):
                self.semaphore(with_another_token).acquire(timeout=60)

    def test_who_is_refused_is_told_the_rules(self) -> None:
        there = Consul(self.agent.address, token=self.token('node "bed" { policy = "read" }'))
        with self.assertRaisesRegex(RefusedError, r'Give the token these rules: key_prefix "team/db/" { policy = "write" }'):
            self.semaphore(there).acquire(timeout=60)

    def test_a_token_that_may_not_see_the_usage(self) -> None:
        unknown = Consul(self.agent.address, token="e2f3a0c4-0000-4000-8000-000000000000")
        with self.assertRaisesRegex(RefusedError, "does not know the token.* Set a token"):
            self.semaphore(unknown).usage()
        blind = Consul(self.agent.address, token=self.token('node "bed" { policy = "read" }'))
        with self.semaphore(Consul(self.agent.address, token=MANAGEMENT)).slot(timeout=60):
            with self.assertRaisesRegex(RefusedError, "lacks permission.* Give the token these rules"):
                self.semaphore(blind).usage()

    def test_settings_that_are_wrong_are_named(self) -> None:
        for text, said in [
            ("CONSUL_HTTP_ADDR.*must be host:port", {"address": "ftp://consul"}),
            ("CONSUL_CACERT", {"ca_file": "/nowhere", "address": "https://127.0.0.1:1"}),
            ("CONSUL_CLIENT_KEY", {"client_cert": "/nowhere"}),
        ]:
            with self.subTest(text), self.assertRaisesRegex(InvalidSemaphoreError, text):
                Consul(**said)

    def test_a_token_is_never_pickled(self) -> None:
        with self.assertRaisesRegex(TypeError, "or set the token in CONSUL_HTTP_TOKEN") as raised:
            pickle.dumps(self.semaphore(Consul(self.agent.address, token=MANAGEMENT)))
        self.assertNotIn(MANAGEMENT, str(raised.exception))
        with mock.patch.dict(os.environ, {"CONSUL_HTTP_TOKEN": MANAGEMENT}):
            pickled = pickle.dumps(self.semaphore(Consul(self.agent.address)))
            self.assertNotIn(MANAGEMENT.encode(), pickled)
            with pickle.loads(pickled).slot(timeout=60):
                pass

    def test_semaphores_of_two_consuls_are_not_taken_together(self) -> None:
        here, there = Consul(), Consul(self.agent.address)
        with self.assertRaisesRegex(InvalidSemaphoreError, "one Consul"):
            Semaphore("a", limit=1, consul=here) & Semaphore("b", limit=1, consul=there)

    def test_nobody_answers(self) -> None:
        nobody = Semaphore("db", limit=1, consul=Consul("127.0.0.1:1"))
        with self.assertRaises(UnreachableError) as raised:
            nobody.acquire(timeout=0)
        self.assertIsInstance(raised.exception, ConnectionError)
        with self.assertRaisesRegex(AcquireTimeoutError, "not within"):
            nobody.acquire(timeout=0.5)


class Many(unittest.TestCase):
    def test_more_than_consul_takes_connections_are_all_served(self) -> None:
        """Each has a Consul of its own, as if it were a program of its own."""
        connections, programs = 80, 90
        agent = Agent(f"limits {{ http_max_conns_per_client = {connections} }}")
        self.addCleanup(agent.stop)

        def semaphore() -> Semaphore:
            # Beside a busy machine the process may renew none of its sessions for a while, and no slot may be lost to
            # that.
            return Semaphore("db", limit=3, ttl=3600, consul=Consul(agent.address))

        def work() -> None:
            with semaphore().slot():
                served.append(threading.get_ident())

        def contend(count: int) -> bool:
            # This needs a connection, too, and Consul may refuse it.
            try:
                return len(agent.contenders("db")) == count
            except OSError:
                return False

        served: list[int] = []
        held = [semaphore().acquire() for _ in range(3)]
        threads = [threading.Thread(target=work) for _ in range(programs)]
        for thread in threads:
            thread.start()
        eventually(lambda: contend(programs + 3))
        self.assertEqual(served, [])
        for slot in held:
            slot.release()
        for thread in threads:
            thread.join()
        self.assertEqual(len(served), programs)
        eventually(lambda: contend(0))
        self.assertEqual(agent.keys("db"), [])


class Losing(unittest.TestCase):
    def test_a_slot_is_lost_in_time_when_consul_is_gone(self) -> None:
        agent = Agent()
        self.addCleanup(agent.stop)
        slot = Semaphore("db", limit=1, ttl=10, consul=Consul(agent.address)).acquire(timeout=60)
        # Whether it is told that Consul is gone before the slot is lost is a matter of retries.
        with mock.patch.object(logging.getLogger("consul_semaphore"), "disabled", True):
            agent.stop()
            self.assertTrue(slot.wait_lost(timeout=60))
        self.assertTrue(slot.lost)


class Example(unittest.TestCase):
    def test_the_readme_says_what_works(self) -> None:
        """Its blocks of Python are run as they are, in the order in which they are there."""
        consul()
        readme = (Path(__file__).parents[1] / "README.md").read_text()
        blocks = [block.split("```")[0] for block in readme.split("```python\n")[1:]]
        self.assertGreater(len(blocks), 3)
        names: dict[str, object] = {"migrate": lambda *_: None, "call_partner": lambda *_: None, "__name__": "readme"}
        with contextlib.redirect_stdout(io.StringIO()):
            for block in blocks:
                exec(compile(block, "README.md", "exec"), names)
