"""URLs as people may be told them: without what may be a secret."""

from __future__ import annotations

import re

from runtime.model.errors import SamzaError

_URL = re.compile(r"((?:[a-z]+:)?([a-z][a-z0-9+.-]*)://)(.*)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"([^/?@:\[]*|\[[^\]]*\])(:\d+)?(?=[/?]|$)")
_OPTIONS = re.compile(r"\?[\w.-]+=.*", re.DOTALL)
_WEB = re.compile(r"(webhook\+)?(http|ws)s?|listen", re.IGNORECASE)
_SECRET = re.compile(r".*(password|secret|token)", re.IGNORECASE)
_CONTAINERS = {"abfs", "abfss", "wasb", "wasbs"}
"""Schemes in which a container stands in front of the host, in the place of who connects."""


def shown_url(url: str) -> str:
    """Return a URL without who connects, in front of the host, and without options behind it; a path as it is.

    Of the web all that stands behind "?" may be a signature; elsewhere a "?" that begins no option is part of a glob.

    >>> shown_url("postgres://me:secret@db/shop?table=orders"), shown_url("orders.jsonl")
    ('postgres://db/shop', 'orders.jsonl')
    >>> shown_url("https://me:secret@host/a.csv?secret"), shown_url("growing:s3://key:secret@lake/?/a@b.csv")
    ('https://host/a.csv', 'growing:s3://lake/?/a@b.csv')
    """
    is_of_web, found = _without_user(url)
    return found.partition("?")[0] if is_of_web else _OPTIONS.sub("", found)


def shown_file(url: str) -> str:
    """Return the URL of a file, or of several, in whose names all characters count but in those of the web.

    >>> shown_file("https://me:secret@host/a.csv?key=secret"), shown_file("s3://key:secret@lake/a?b=1.csv")
    ('https://host/a.csv', 's3://lake/a?b=1.csv')
    """
    is_of_web, found = _without_user(url)
    return found.partition("?")[0] if is_of_web else found


def check_is_text(place: object) -> None:
    r"""Raise SamzaError where the name of a file, directory or URL is no UTF-8: runs note it in what they keep.

    >>> check_is_text("caf\udce9.jsonl")
    Traceback (most recent call last):
        ...
    runtime.model.errors.SamzaError: 'caf\udce9.jsonl' is no UTF-8, in which its name would be noted: rename it
    """
    try:
        str(place).encode()
    except UnicodeEncodeError:
        raise SamzaError(
            f"{shown_url(str(place))!a} is no UTF-8, in which its name would be noted: rename it"
        ) from None


def secrets_in(text: str) -> list[str]:
    """Return the secrets of a URL, or of `name=URL`: the password of who connects, and what options keep as one.

    >>> secrets_in("orders=postgres://me:a/b@db/shop?sslpassword=c&table=orders"), secrets_in("https://host/a.csv?sig=d")
    (['a/b', 'c'], ['sig=d'])
    >>> secrets_in("kafka://db:9092"), secrets_in("growing:s3://lake/?/a@b.csv"), secrets_in("postgres://me@db/shop")
    ([], [], [])
    """
    return [text[start:end] for start, end in _secret_places(text)]


def concealed(text: str, by: str) -> str:
    """Return a URL, or `name=URL`, with something in the place of each of its secrets.

    >>> concealed("orders=postgres://me:me@db/me?table=me", "***")
    'orders=postgres://me:***@db/me?table=me'
    """
    for start, end in reversed(_secret_places(text)):
        text = text[:start] + by + text[end:]
    return text


def _secret_places(text: str) -> list[tuple[int, int]]:
    """Return where secrets of a URL begin and end, in their order."""
    found = _URL.search(text)
    if found is None:
        return []
    places, begin = [], found.start(3)
    is_of_web, shown = _without_user(found.group())
    if len(shown) < len(found.group()):
        begin += len(found.group()) - len(shown)
        user, colon, password = text[found.start(3) : begin - 1].partition(":")
        # Of the web a user without a password is a token.
        secret = password if colon or not is_of_web else user
        places.append((begin - 1 - len(secret), begin - 1))
    at = text.find("?", begin)
    if at >= 0 and is_of_web:
        places.append((at + 1, len(text)))
    elif at >= 0:
        options = re.finditer(r"[?&]([^&=]*)=([^&]*)", text[at:])
        places += [(at + one.start(2), at + one.end(2)) for one in options if _SECRET.fullmatch(one[1])]
    return [(start, end) for start, end in places if start < end]


def _without_user(url: str) -> tuple[bool, str]:
    """Return whether a URL is of the web, and the URL without who connects."""
    found = _URL.fullmatch(url)
    if found is None:
        return False, url
    start, scheme, rest = found.groups()
    if "@" in rest and not _HOST.match(rest):
        authority = re.split("[/?]", rest, maxsplit=1)[0]
        who, at, host = authority.rpartition("@")
        if not at:
            # A secret with a slash or a question mark in it, which nobody has escaped.
            rest = rest.rpartition("@")[2]
        elif ":" in who or scheme.lower() not in _CONTAINERS:
            rest = host + rest[len(authority) :]
    return _WEB.fullmatch(scheme) is not None, start + rest
