"""Addresses of receivers: what can be one, and which of them may be sent to.

An endpoint that was made over HTTP must not become a way into the collector's own network. So its name is looked up
once per attempt, every answer is judged, and the connection goes to an address that was judged, not to the name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOKUP_S = 5.0

HIDDEN = "****"

_LEAST_KEY = 16

PORTS = {"http": 80, "https": 443}

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_NOT_PUBLIC: tuple[Network, ...] = (
    ipaddress.ip_network("168.63.129.16/32"),  # the agent of each host of Azure, at a public address
    ipaddress.ip_network("192.0.0.0/24"),  # of protocols; at 192.0.0.192 Oracle's metadata
    ipaddress.ip_network("192.88.99.0/24"),  # relays of 6to4
    ipaddress.ip_network("3fff::/20"),  # examples in documents
)
"""What Python, or one version of it, takes for public: https://www.iana.org/assignments/iana-ipv4-special-registry"""


class UnknownHostError(OSError):
    """No address is known for a host."""


UNKNOWN = "no address is known for the host {host} ({said}): check its spelling, and the collector's DNS"


class AddressError(ValueError):
    """Nothing may or can be sent there; the message says why."""


@dataclass(frozen=True)
class Guard:
    """Which addresses may be sent to: public ones, and those of the ``networks`` that the operator allows."""

    networks: tuple[Network, ...] = ()

    def check(self, address: Address) -> None:
        """Raise AddressError unless this address may be sent to."""
        inner = _unwrapped(address)
        if any(inner in network for network in self.networks if network.version == inner.version):
            return
        if not _is_public(inner):
            raise AddressError(
                f"{inner} is not a public address: give the receiver on the command line with --webhook, or allow its "
                "network with GRADCANARY_WEBHOOK_NETWORKS"
            )

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, each of which may be sent to.

        Raises AddressError if one may not: of mixed answers the next lookup could begin with that one. OSError where
        the name is not known, or has none.
        """
        try:
            found = await asyncio.wait_for(asyncio.to_thread(_look_up, host, port), LOOKUP_S)
        except asyncio.TimeoutError as error:
            raise OSError(f"the name {host} was not found within {LOOKUP_S:g} s") from error
        texts = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not texts:
            raise OSError(f"the name {host} has no address")
        for text in texts:
            self.check(ipaddress.ip_address(text))
        return texts


def _look_up(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # what is no name at all, by the rules of names in other scripts
        raise OSError(f"{host!r} is no name of a host") from error
    except socket.gaierror as error:
        raise UnknownHostError(UNKNOWN.format(host=host, said=error.strerror)) from error


def networks(text: str) -> tuple[Network, ...]:
    """Return the networks of a list with commas; raises ValueError."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def check_url(url: str) -> None:
    """Raise AddressError unless messages can be sent to such an address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError(f"{url!r} is not an address ({error}): http://HOST[:PORT]/PATH") from error
    if parts.username is not None or parts.password is not None:
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        raise AddressError(
            f"{bare!r} was given with a user name or password: leave them out; "
            "messages are signed, the receiver checks the signature"
        )
    if host is not None and not host.isascii():
        raise AddressError(f"{url!r} has letters in its host that no header takes: write it as xn--...")
    if parts.scheme not in PORTS or not host or not url.isprintable() or " " in url:
        raise AddressError(f"{url!r} is not an http or https address: http://HOST[:PORT]/PATH")


def host_and_port(url: str) -> tuple[str, int]:
    """Return where an address that :func:`check_url` takes leads."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or PORTS[parts.scheme]


def authority(url: str) -> str:
    """Return what the Host header of a request says."""
    return urlsplit(url).netloc


def pinned(url: str, address: str) -> str:
    """Return the address of a receiver with its name replaced by one of its IP addresses."""
    parts = urlsplit(url)
    host = f"[{address}]" if ":" in address else address
    return urlunsplit(parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}"))


def shown(url: str) -> str:
    """Return an address as it may be shown: what may be a key is not, its query and long parts of its path."""
    parts = urlsplit(url)
    path = "/".join(HIDDEN if len(part) >= _LEAST_KEY else part for part in parts.path.split("/"))
    return urlunsplit(parts._replace(path=path, query=parts.query and HIDDEN, fragment=parts.fragment and HIDDEN))


def _is_public(address: Address) -> bool:
    kinds = (address.is_multicast, address.is_reserved, address.is_unspecified, address.is_link_local)
    is_odd = any(kinds) or (isinstance(address, ipaddress.IPv6Address) and address.is_site_local)
    is_named = any(address in network for network in _NOT_PUBLIC)  # of the other kind of address: False
    return address.is_global and not is_odd and not is_named


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one leads to, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
