"""Where a collector listens: the socket, who reaches it, and by which address people, agents and its own pages do."""

from __future__ import annotations

import socket
import ssl
from ipaddress import ip_address
from pathlib import Path

from gradcanary_server.errors import SettingsError


class Listener:
    """A bound socket; ``host`` is what the operator named."""

    def __init__(self, host: str, port: int, *, is_tls: bool) -> None:
        """Raise SettingsError where nobody can listen there."""
        self.socket = _bind(host, port)
        self._host = host
        self._address, self._port = self.socket.getsockname()[:2]
        self._scheme = "https" if is_tls else "http"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it: by the address that was bound, not by what its name promises."""
        return ip_address(self._address.partition("%")[0]).is_loopback

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._at(self._host)

    @property
    def own_url(self) -> str:
        """Where this process reaches itself."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- that is what is replaced
        return self._at(everywhere.get(self._address, self._address))

    @property
    def public_url(self) -> str:
        """Where others reach it, as far as this machine knows: by its name where it listens everywhere."""
        return self._at(socket.gethostname() if ip_address(self._address).is_unspecified else self._host)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _at(self, host: str) -> str:
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"


def only(chain: Path) -> ssl.SSLContext:
    """Return what believes this certificate and no other: whoever shows it has the key, under whatever name."""
    context = ssl.create_default_context(cafile=str(chain))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"--host {host!r} is no address of this machine ({error}).") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {host}:{port} ({error.strerror}). Is another collector running? "
            "Stop it, or choose another port with --port."
        ) from error
    return listener
