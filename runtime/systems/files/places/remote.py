"""Files behind URLs, and such as zstd has compressed, which Arrow opens; so import it late."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, FSSpecHandler, PyFileSystem

from runtime.model.errors import SamzaError
from runtime.model.urls import shown_file
from runtime.systems.files.places.locations import (
    MAGIC,
    OBJECT_STORES,
    braced,
    is_data,
    matches,
    needs,
    of_http,
    parted,
)

if TYPE_CHECKING:
    from typing import BinaryIO

    from fsspec.spec import AbstractFileSystem

OF_ARROW = {*OBJECT_STORES.values(), "hdfs", "viewfs"}
"""The schemes that Arrow opens by itself."""


def listed_files(url: str) -> list[tuple[str, int, float]]:
    """Return the files of a URL, which may be a glob, at any depth: the URL of each, its bytes, and its time (s)."""
    base, path = parted(url)
    is_http = of_http(url)
    # Of HTTP what stands behind "?" is no name, and asks for one file alone.
    is_glob = MAGIC.search(path) is not None and not (is_http and "?" in path)
    fixed = MAGIC.split(path)[0].rpartition("/")[0] if is_glob else path.rstrip("/")
    system, root = remote_system(base + fixed)
    try:
        # A server of HTTP can't tell a folder from a file: it is one by the slash behind its name.
        found = list(_listed(system, root, is_glob or (is_http and url.endswith("/"))))
    except (OSError, pa.ArrowException) as error:
        where = shown_file(url)
        raise SamzaError(f"can't look into {where}: {error}; check the URL, and who may read there") from error
    below = [one.path[len(root) :].lstrip("/") for one in found]
    names = [f"{fixed}/{one}".strip("/") if one else fixed for one in below]
    patterns = braced(path.rstrip("/")) if is_glob else []
    start = len(fixed.split("/")) if fixed else 0
    kept = [
        (name, one)
        for name, one in zip(names, found, strict=True)
        for said in (unquote(name) if is_http else name,)
        if all(map(is_data, said.split("/")[start:])) and (not is_glob or any(matches(said, each) for each in patterns))
    ]
    kept.sort(key=lambda one: one[0].split("/"))
    return [(base + name, one.size or 0, (one.mtime_ns or 0) / 1e9) for name, one in kept]


def _listed(system: FileSystem, root: str, is_folder: bool) -> Iterable[FileInfo]:
    """Return all files at a place or below it."""
    if not is_folder:
        (at,) = system.get_file_info([root])
        if at.type == FileType.File:
            return [at]
    found = system.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    return [one for one in found if one.type == FileType.File]


def opened_file(url: str) -> pa.NativeFile:
    """Return a file open for reading at any place; raises OSError where that can't be."""
    system, path = remote_system(url)
    return system.open_input_file(path)


def unzstd(file: BinaryIO) -> BinaryIO:
    """Return what a file that zstd has compressed stands for."""
    unpacked: BinaryIO = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
    return unpacked


def unpacked_by(codec: str, data: bytes, most: int) -> bytes | None:
    """Return what snappy or zstd has compressed, or None for more bytes than `most`; raises Arrow's own errors."""
    if codec == "snappy":
        size, shift, at = 0, 0, 0
        while True:
            size |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                break
        return None if size > most else pa.Codec("snappy").decompress(data, size, asbytes=True)
    unpacked: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read(most + 1)
    return None if len(unpacked) > most else unpacked


def zstd(data: bytes) -> bytes:
    """Return data as zstd compresses them."""
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


def remote_system(url: str) -> tuple[FileSystem, str]:
    """Return the file system of a URL, and the path in it; raises SamzaError where Arrow has none for it."""
    base, path = parted(url)
    scheme, _, authority = base.partition(":")
    try:
        system, root = opened_system(f"{OBJECT_STORES.get(scheme.lower(), scheme)}:{authority}")
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        raise SamzaError(
            f"can't open {shown_file(url)}: {unknown_scheme(url) or error}; a local run opens s3://, gs://, abfss:// "
            "and hdfs:// by Arrow, and others, as az://, http:// and memory://, by fsspec, with the credentials that "
            "the documentation of each names; Spark opens what its session can: on=Spark(session)"
        ) from error
    return system, f"{root.rstrip('/')}/{path}"


def unknown_scheme(url: str) -> str:
    """Return words for a scheme by which neither Arrow nor fsspec knows a file system; none where one may.

    >>> unknown_scheme("mysql://db/shop"), unknown_scheme("s3://lake/a.csv")
    ('no connector of mysql:// is installed, nor a file system that is called so', '')
    """
    scheme = url.partition(":")[0].lower()
    with suppress(ImportError):
        from fsspec import available_protocols

        if scheme not in {*OBJECT_STORES, *OF_ARROW, *available_protocols()}:
            return f"no connector of {scheme}:// is installed, nor a file system that is called so"
    return ""


@cache
def opened_system(url: str) -> tuple[FileSystem, str]:
    """Return the file system of a bucket or a server, of which one is enough for all its files."""
    if url.partition(":")[0].lower() in OF_ARROW:
        system, root = FileSystem.from_uri(url)
        return system, root
    other, root = written_system(url)
    return PyFileSystem(_TimedHandler(other)), root


class _TimedHandler(FSSpecHandler):  # type: ignore[misc]  # pyarrow has no types
    """Arrow's view of a file system of fsspec, with the times of files by whatever name its library tells them."""

    @staticmethod
    def _create_file_info(path: str, info: dict[str, object]) -> FileInfo:
        times = (info.get(name) for name in ("mtime", "LastModified", "last_modified", "created"))
        told = next((one for one in times if isinstance(one, datetime | int | float)), None)
        return FSSpecHandler._create_file_info(path, {**info, "mtime": told})


def written_system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL as fsspec has it, and the path in it; raises SamzaError where there is none.

    Only that tells whether a file was there already where one is to be made.
    """
    if "://" not in url:
        raise ValueError(f"fsspec knows file systems by a scheme and two slashes, and not by {shown_file(url)}")
    with needs("fsspec", f"{shown_file(url)} needs", "files"):
        from fsspec.core import url_to_fs
    try:
        # What was listed is asked for anew at each look: files come, and others write.
        system, path = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        is_s3 = OBJECT_STORES.get(url.partition(":")[0].lower()) == "s3"
        instead = "pip install 'samza-dsl[s3]'" if is_s3 else error
        raise SamzaError(f"{shown_file(url)} needs a library that is not installed: {instead}") from error
    return system, path
