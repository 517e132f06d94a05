"""The addresses at which something is served, and whether others than this machine can ask there."""

from __future__ import annotations

import ipaddress

LOCAL = "127.0.0.1"


def address_of(said: str) -> tuple[str, int]:
    """Return the host and port of an address; without a host it is this machine alone. Raises ValueError.

    >>> address_of(":9464"), address_of("0.0.0.0:80"), address_of("[::1]:80")
    (('127.0.0.1', 9464), ('0.0.0.0', 80), ('::1', 80))
    """
    host, colon, port = said.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise ValueError(f"{said!r} is no address")
    return host.strip("[]") or LOCAL, int(port)


def is_local(host: str) -> bool:
    """Whether only this machine can ask at a host.

    >>> [*map(is_local, ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.com"))]
    [True, True, True, False, False]
    """
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is an address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
