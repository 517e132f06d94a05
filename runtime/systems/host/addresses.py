"""The addresses at which something is served, and whether others than this machine can ask there."""

from __future__ import annotations

import ipaddress
import platform
import re
import socket
from contextlib import closing, suppress

LOCAL = "127.0.0.1"
ANY_PORT = 1
"""A port to look at an address with, where the one that is served is not known yet."""
_HOST = re.compile(r"[0-9A-Za-z._:%-]+")


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


def told_to_others(host: str, port: int, towards: str) -> str:
    """Return the address under which others know what is served at a host and port.

    Where every address of the machine is listened at, it is the one from which the first server of `towards`, as
    "host:port,host:port", is reached. What this machine alone can ask has its name behind it.

    >>> told_to_others("10.0.0.7", 9464, ""), told_to_others("::", 80, "127.0.0.1:9092").split(" ")[0]
    ('10.0.0.7:9464', '127.0.0.1:80')
    """
    if is_address(host) and ipaddress.ip_address(host).is_unspecified:
        host = _own_address(towards)
    if is_local(host):
        return f"{typed(LOCAL if host == 'localhost' else host, port)} {platform.node()}"
    return typed(host, port)


def advertised(said: str, port: int) -> str:
    """Return the address that others are told instead, by its host or its host and port; raises ValueError.

    >>> advertised("gate.example", 9464), advertised("gate.example:80", 9464), advertised("[2001:db8::1]", 80)
    ('gate.example:9464', 'gate.example:80', '[2001:db8::1]:80')
    """
    has_port = ":" in said.rpartition("]")[2]
    host, at = address_of(said) if has_port else (said.strip("[]"), port)
    wanted = typed(host, at)
    is_nobodys = is_local(host) or (is_address(host) and ipaddress.ip_address(host).is_unspecified)
    if is_nobodys or not at or said not in (wanted, wanted.removesuffix(f":{port}")) or not _HOST.fullmatch(host):
        raise ValueError(f"{said!r} is no address that others reach")
    return wanted


def typed(host: str, port: int) -> str:
    """Return a host and a port as they are typed."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_address(towards: str) -> str:
    """Return the address of this machine on the way to a server; nothing is sent to it."""
    with suppress(ValueError, OSError):
        host, port = address_of(towards.partition(",")[0])
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as found:
            found.connect(address)
            return str(found.getsockname()[0])
    return platform.node()
