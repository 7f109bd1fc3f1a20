"""How to reach Consul."""

import os
from typing import Optional, Union

from consul_semaphore import _native
from consul_semaphore._calls import PerProcess

Path = Union[str, "os.PathLike[str]"]


class Consul:
    """How to reach Consul: by its own environment variables, except for what is said here.

    These are CONSUL_HTTP_ADDR, _TOKEN, _TOKEN_FILE, _SSL, _SSL_VERIFY and _AUTH, CONSUL_CACERT, _CAPATH, _CLIENT_CERT,
    _CLIENT_KEY, _TLS_SERVER_NAME, _NAMESPACE and _PARTITION, as in Consul's own tools. They are read when this is made.

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
        settings = {name: value for name, value in os.environ.items() if name.startswith("CONSUL_")}
        settings.update({name: os.fspath(value) for name, value in said.items() if value is not None})
        self._client = PerProcess(lambda: _native.Consul(settings, datacenter))
        # What is not possible is said now.
        self._client.get()


_default: Optional[Consul] = None


def default() -> Consul:
    """That of the environment, as it is when it is first needed: all semaphores share its connections."""
    global _default
    if _default is None:
        _default = Consul()
    return _default
