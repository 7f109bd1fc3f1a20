"""How to reach Consul."""

import os
from collections.abc import Callable
from typing import Optional, Union

from consul_semaphore import _native
from consul_semaphore._calls import PerProcess

Path = Union[str, "os.PathLike[str]"]


class Consul:
    """How to reach Consul: by its own environment variables, except for what is said here.

    These are CONSUL_HTTP_ADDR, _TOKEN, _TOKEN_FILE, _SSL, _SSL_VERIFY and _AUTH, CONSUL_CACERT, _CAPATH, _CLIENT_CERT,
    _CLIENT_KEY, _TLS_SERVER_NAME, _NAMESPACE and _PARTITION, as in Consul's own tools. They are read when this is made.
    A process of multiprocessing to which it is given reads its own. With a `token` it can't be given to one.

    address: `host:port`, `http://host:port`, `https://host:port` or `unix:///path`; several with commas
    token_file: a file with the token, read again when it changes
    datacenter: by default that of the agent or server
    """

    def __init__(
        self,
        address: Optional[str] = None,
        *,
        token: Optional[str] = None,
        token_file: Optional[Path] = None,
        ca_file: Optional[Path] = None,
        client_cert: Optional[Path] = None,
        client_key: Optional[Path] = None,
        tls_server_name: Optional[str] = None,
        namespace: Optional[str] = None,
        partition: Optional[str] = None,
        datacenter: Optional[str] = None,
    ) -> None:
        said = {
            "CONSUL_HTTP_ADDR": address,
            "CONSUL_HTTP_TOKEN": token,
            # Of the two the file counts: that of the environment must not replace a token that is said here.
            "CONSUL_HTTP_TOKEN_FILE": "" if token is not None and token_file is None else token_file,
            "CONSUL_CACERT": ca_file,
            "CONSUL_CLIENT_CERT": client_cert,
            "CONSUL_CLIENT_KEY": client_key,
            "CONSUL_TLS_SERVER_NAME": tls_server_name,
            "CONSUL_NAMESPACE": namespace,
            "CONSUL_PARTITION": partition,
        }
        self._build({name: os.fspath(value) for name, value in said.items() if value is not None}, datacenter)

    def _build(self, said: dict[str, str], datacenter: Optional[str]) -> None:
        self._said = said, datacenter
        settings = {name: value for name, value in os.environ.items() if name.startswith("CONSUL_")}
        settings.update(said)
        self._client = PerProcess(lambda: _native.Consul(settings, datacenter))
        # What is not possible is said now.
        self._client.get()

    def __reduce__(self) -> tuple[Callable[..., "Consul"], tuple[object, ...]]:
        """For another process, whose environment counts there."""
        if self is _default:
            return default, ()
        if self._said[0].get("CONSUL_HTTP_TOKEN"):
            raise TypeError(
                "a Consul with a token can't be pickled, because the token would be legible in that: make it in the"
                " process that uses it, or set the token in CONSUL_HTTP_TOKEN or token_file"
            )
        return _again, self._said


def _again(said: dict[str, str], datacenter: Optional[str]) -> Consul:
    consul = Consul.__new__(Consul)
    consul._build(said, datacenter)
    return consul


_default: Optional[Consul] = None


def default() -> Consul:
    """That of the environment, as it is when it is first needed: all semaphores share its connections."""
    global _default
    if _default is None:
        _default = Consul()
    return _default
