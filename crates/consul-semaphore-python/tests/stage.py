"""A Consul of its own for the tests, and other programs beside them."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional, cast

SERVERS = Path(os.environ["SERVERS_DIR"]) / "bin"
PATIENCE = 300.0
"""How long something may take that takes a moment, on a machine that is busy with other things."""

# A shell has what it starts in the background ignore Ctrl-C, and so would the programs that are started here.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Consul:
    """`consul agent -dev` on free ports of loopback."""

    def __init__(self, config: str = "") -> None:
        program = os.environ.get("TESTBED_CONSUL") or str(SERVERS / "consul")
        if not Path(program).exists():
            raise FileNotFoundError(f"{program} is not there: run `make servers`")
        self._folder = tempfile.TemporaryDirectory()
        log = Path(self._folder.name) / "log"
        http, server, lan, wan = _free_ports(4)
        self.address = f"127.0.0.1:{http}"
        arguments = [program, "agent", "-dev", "-node=bed", "-bind=127.0.0.1", "-dns-port=-1", "-grpc-port=-1"]
        arguments += ["-grpc-tls-port=-1", f"-http-port={http}", f"-server-port={server}"]
        arguments += [f"-serf-lan-port={lan}", f"-serf-wan-port={wan}"]
        if config:
            arguments += ["-hcl", config]
        with log.open("w") as out:
            self._process = subprocess.Popen(arguments, stdout=out, stderr=out)
        try:
            eventually(lambda: self._leads() or self._process.poll() is not None)
            if self._process.poll() is not None:
                raise RuntimeError(log.read_text())
        except BaseException:
            self.stop()
            raise

    def _leads(self) -> bool:
        try:
            return bool(self.call("GET", "status/leader"))
        except (OSError, urllib.error.HTTPError):
            return False

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def call(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}/v1/{path}", data, method=method)
        request.add_header("X-Consul-Token", token)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def keys(self, prefix: str) -> list[str]:
        try:
            return cast("list[str]", self.call("GET", f"kv/{prefix}/?keys"))
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return []

    def holders(self, prefix: str) -> list[str]:
        """The sessions in `.lock`."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/v1/kv/{prefix}/.lock?raw", timeout=PATIENCE) as answer:
                return list(json.load(answer)["Holders"])
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return []

    def live_holders(self, prefix: str) -> list[str]:
        return [session for session in self.holders(prefix) if self.call("GET", f"session/info/{session}")]

    def contenders(self, prefix: str) -> list[str]:
        return [key for key in self.keys(prefix) if not key.endswith("/.lock")]

    def destroy(self, session: str) -> None:
        self.call("PUT", f"session/destroy/{session}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def eventually(is_so: Callable[[], object]) -> None:
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError("it does not come to be so")
        time.sleep(0.05)


class Program:
    """A Python program in a process of its own. Its input ends when its end is awaited."""

    def __init__(self, source: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def ended(self) -> tuple[int, str, str]:
        """Its exit code, and what else it has said."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


_consul: Optional[Consul] = None


def consul() -> Consul:
    """That of all tests, which ends with them."""
    global _consul
    if _consul is None:
        _consul = Consul()
        atexit.register(_consul.stop)
        os.environ["CONSUL_HTTP_ADDR"] = _consul.address
    return _consul


class Stage(unittest.TestCase):
    """A test with a prefix of its own."""

    rests = False
    """Whether a slot stays held when the test is over."""

    def setUp(self) -> None:
        self.consul = consul()
        self.prefix = f"tests/{uuid.uuid4()}"

    def tearDown(self) -> None:
        """Whatever the test did, nobody holds or waits in the end. Who has died stays in `.lock` until others look."""
        if not self.rests:
            eventually(lambda: not self.consul.contenders(self.prefix) and not self.consul.live_holders(self.prefix))
