"""URLs of webhooks: their checks, and the policy which IP addresses messages may go to.

An endpoint that was made over HTTP must not open the collector's own network. So its name is resolved once per attempt,
every address is checked, and the connection goes to a checked address, not to the name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gradcanary_server.errors import without_password

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOKUP_S = 5.0

HIDDEN = "****"

_PLAIN = re.compile(r"(?=.{0,15}$)[a-z]*([-_.][a-z]+)*|v?[0-9]{1,3}")
"""A part of a path that is no key: a short word in small letters (webhooks), a version (v2) or a small number."""

PORTS = {"http": 80, "https": 443}

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_NOT_PUBLIC: tuple[Network, ...] = (
    ipaddress.ip_network("168.63.129.16/32"),  # Azure's host agent, a public address
    ipaddress.ip_network("192.0.0.0/24"),  # protocol assignments; Oracle's metadata is at 192.0.0.192
    ipaddress.ip_network("192.88.99.0/24"),  # 6to4 relays
    ipaddress.ip_network("3fff::/20"),  # documentation
)
"""Networks that a version of Python takes for public: https://www.iana.org/assignments/iana-ipv4-special-registry"""


class UnknownHostError(OSError):
    """The name of a host has no address."""


class AddressError(ValueError):
    """A URL that is invalid or not allowed; the message contains the reason."""


@dataclass(frozen=True)
class EgressPolicy:
    """Allows public addresses, and those in ``networks``."""

    networks: tuple[Network, ...] = ()

    def check(self, address: Address) -> None:
        """Raise AddressError unless the policy allows this address."""
        inner = _unwrapped(address)
        if any(inner in network for network in self.networks if network.version == inner.version):
            return
        if not _is_public(inner):
            raise AddressError(
                f"{inner} is not a public address: give the receiver on the command line with --webhook, or allow its "
                "network with GRADCANARY_WEBHOOK_NETWORKS"
            )

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; raises AddressError unless all are allowed, OSError if it has none.

        One that is not allowed refuses all: the next lookup could return it first.
        """
        try:
            results = await asyncio.wait_for(asyncio.to_thread(_look_up, host, port), LOOKUP_S)
        except asyncio.TimeoutError as error:
            raise OSError(f"the name {host} was not found within {LOOKUP_S:g} s") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in results))
        if not addresses:
            raise OSError(f"the name {host} has no address")
        for address in addresses:
            self.check(ipaddress.ip_address(address))
        return addresses


def _look_up(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # not a valid international domain name
        raise OSError(f"{host!r} is no name of a host") from error
    except socket.gaierror as error:
        message = (
            f"no address is known for the host {host} ({error.strerror}): check its spelling, and the collector's DNS"
        )
        raise UnknownHostError(message) from error


def check_url(url: str) -> None:
    """Raise AddressError unless messages can be sent to a URL of this form."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError(f"{without_password(url)!r} is not an address ({error}): http://HOST[:PORT]/PATH") from error
    if parts.username is not None or parts.password is not None:
        raise AddressError(
            f"{without_password(url)!r} was given with a user name or password: leave them out; "
            "messages are signed, the receiver checks the signature"
        )
    if host is not None and not host.isascii():
        raise AddressError(f"{url!r} has letters in its host that no header takes: write it as xn--...")
    if parts.scheme not in PORTS or not host or not url.isprintable() or " " in url:
        raise AddressError(f"{url!r} is not an http or https address: http://HOST[:PORT]/PATH")


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and port of a URL that passed :func:`check_url`."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or PORTS[parts.scheme]


def with_resolved_ip(url: str, address: str) -> str:
    """Return a URL with its host replaced by one of its IP addresses."""
    parts = urlsplit(url)
    host = f"[{address}]" if ":" in address else address
    return urlunsplit(parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}"))


def redact_url(url: str) -> str:
    """Return a URL without its query and the parts of its path that may be keys."""
    parts = urlsplit(url)
    path = "/".join(part if _PLAIN.fullmatch(part) else HIDDEN for part in parts.path.split("/"))
    return urlunsplit(parts._replace(path=path, query=parts.query and HIDDEN, fragment=parts.fragment and HIDDEN))


def _is_public(address: Address) -> bool:
    special = (address.is_multicast, address.is_reserved, address.is_unspecified, address.is_link_local)
    is_special = any(special) or (isinstance(address, ipaddress.IPv6Address) and address.is_site_local)
    is_listed = any(address in network for network in _NOT_PUBLIC)  # False for networks of the other IP version
    return address.is_global and not is_special and not is_listed


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address in an IPv6 address, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
